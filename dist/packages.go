package main

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	"github.com/goreleaser/nfpm/v2/rpm"
)

// packages writes the .deb and the .rpm of a platform.
func (r *release) packages(p platform, list []file) error {
	dir, err := os.MkdirTemp("", "lmosd-packages")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for kind, packager := range map[string]nfpm.Packager{"deb": deb.Default, "rpm": rpm.DefaultRPM} {
		info, err := r.info(p, dir, list)
		if err != nil {
			return err
		}
		if kind == "rpm" {
			for _, c := range info.Contents { // where Fedora has them
				if c.Destination == "/usr/share/zsh/vendor-completions/_lmosd" {
					c.Destination = "/usr/share/zsh/site-functions/_lmosd"
				}
			}
		}
		if err := nfpm.PrepareForPackager(info, kind); err != nil {
			return err
		}
		f, err := os.Create(filepath.Join(r.out, packager.ConventionalFileName(info)))
		if err != nil {
			return err
		}
		if err := errors.Join(packager.Package(info, f), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// info describes a package; its files are written to dir, because the library reads files.
func (r *release) info(p platform, dir string, list []file) (*nfpm.Info, error) {
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "lmosd", Platform: "linux", Arch: p.arch, Version: r.version, Section: "net", Priority: "optional", License: "Apache-2.0", MTime: r.date,
		Maintainer: "The lmosd project <lmosd@localhost>", Homepage: "https://github.com/lmosd/lmosd", DisableGlobbing: true,
		Description: "peer-to-peer mesh of AI agents, without a registry\nOne program per host: it publishes, finds and calls agents and tools, and serves them to clients of MCP and A2A.",
	})
	info.Recommends = []string{"ca-certificates"}
	// The host that builds is not part of the package.
	info.RPM.BuildHost, info.RPM.Compression, info.Deb.Compression = "localhost", "gzip", "gzip"
	info.RPM.Summary = "Peer-to-peer mesh of AI agents, without a registry"
	info.Scripts = nfpm.Scripts{PostInstall: "scripts/postinst", PreRemove: "scripts/prerm", PostRemove: "scripts/postrm"}
	for _, f := range list {
		source := filepath.Join(dir, filepath.FromSlash(f.packaged))
		if err := errors.Join(os.MkdirAll(filepath.Dir(source), 0o755), os.WriteFile(source, f.data, f.mode)); err != nil {
			return nil, err
		}
		c := &files.Content{Source: source, Destination: f.packaged, FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: f.mode, MTime: r.date}}
		if f.config {
			c.Type = files.TypeConfigNoReplace
		}
		info.Contents = append(info.Contents, c)
	}
	return info, nil
}
