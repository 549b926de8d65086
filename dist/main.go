// Command dist makes what a release consists of, in the folder out: for each platform an archive, a bill of materials (CycloneDX), for Linux
// packages for Debian (.deb) and Red Hat (.rpm), and SHA256SUMS. The same commit and version give the same bytes, in any folder.
//
//	cd dist && go run . [-version 1.2.3] [-out DIR] [-platforms linux/amd64,…]
package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	version := flag.String("version", os.Getenv("VERSION"), "`VERSION` of the release; default: the tag of the commit, or a name made from its date")
	out := flag.String("out", "out", "write into the folder `DIR`, which is emptied first")
	platforms := flag.String("platforms", "linux/amd64,linux/arm64,darwin/arm64", "`LIST` of os/architecture")
	flag.Parse()
	r, err := newRelease("..", strings.TrimPrefix(*version, "v"), *out)
	if err == nil {
		err = r.make(strings.Split(*platforms, ","))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

// A release is one execution.
type release struct {
	root, out string
	version   string
	commit    string
	date      time.Time // the time of the commit: of all files
	licenses  *licenses
}

// A platform is an operating system and an architecture, with the program that was built for it.
type platform struct {
	os, arch string
	binary   string
}

func (p platform) String() string { return p.os + "_" + p.arch }

// newRelease reads version, commit and date. Without git, VERSION and SOURCE_DATE_EPOCH give them.
func newRelease(root, version, out string) (*release, error) {
	r := &release{root: root, out: out, version: version}
	commit, err := r.git("rev-parse", "HEAD")
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		n, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
		}
		r.date = time.Unix(n, 0).UTC()
	}
	if err != nil {
		if r.version == "" || r.date.IsZero() {
			return nil, fmt.Errorf("outside of a git checkout, set VERSION and SOURCE_DATE_EPOCH: %w", err)
		}
		return r, r.check()
	}
	r.commit = commit
	seconds, err := r.git("show", "-s", "--format=%ct", "HEAD")
	if err != nil {
		return nil, err
	}
	committed, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return nil, err
	}
	if r.date.IsZero() {
		r.date = time.Unix(committed, 0).UTC()
	}
	if r.version == "" {
		r.version = r.versionOf(commit, time.Unix(committed, 0).UTC())
	}
	return r, r.check()
}

// versionOf returns the tag of the commit, or a pseudo-version as the Go command makes them.
func (r *release) versionOf(commit string, date time.Time) string {
	tag, err := r.git("describe", "--tags", "--match", "v[0-9]*", "--exact-match", "HEAD")
	if err == nil {
		return strings.TrimPrefix(tag, "v")
	}
	return fmt.Sprintf("0.0.0-%s-%s", date.Format("20060102150405"), commit[:12])
}

// check refuses versions that are not semantic, because the formats of packages compare them.
func (r *release) check() error {
	if !regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`).MatchString(r.version) {
		return fmt.Errorf("the version is %q, expected a semantic version such as 1.2.3", r.version)
	}
	return nil
}

func (r *release) git(args ...string) (string, error) {
	b, err := exec.Command("git", append([]string{"-C", r.root}, args...)...).Output()
	return strings.TrimSpace(string(b)), err
}

// make writes the files of all platforms.
func (r *release) make(names []string) error {
	if err := errors.Join(os.RemoveAll(r.out), os.MkdirAll(filepath.Join(r.out, "bin"), 0o755)); err != nil {
		return err
	}
	var list []platform
	for _, name := range names {
		system, arch, ok := strings.Cut(name, "/")
		if !ok {
			return fmt.Errorf("a platform is os/architecture, got %q", name)
		}
		p := platform{os: system, arch: arch, binary: filepath.Join(r.out, "bin", "lmosd_"+system+"_"+arch)}
		if err := r.build(p); err != nil {
			return err
		}
		list = append(list, p)
	}
	here, err := r.native(list)
	if err != nil {
		return err
	}
	r.licenses = &licenses{root: r.root}
	for _, p := range list {
		if err := r.platform(p, here); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return r.sums()
}

// build compiles the program. The Go command records no revision of its own, which it would read from the folder; -X has it.
func (r *release) build(p platform) error {
	const info = "github.com/lmosd/lmosd/internal/buildinfo."
	values := fmt.Sprintf("-s -w -X %sversion=%s -X %scommit=%s -X %sdate=%s", info, r.version, info, r.commit, info, r.date.Format(time.RFC3339))
	binary, err := filepath.Abs(p.binary)
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags="+values, "-o", binary, "./cmd/lmosd")
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.root, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.os, "GOARCH="+p.arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=-mod=readonly", "GOWORK=off")
	return cmd.Run()
}

// native returns a program that runs here: it prints the manual pages, the completions and the configuration.
func (r *release) native(list []platform) (string, error) {
	for _, p := range list {
		if p.os == runtime.GOOS && p.arch == runtime.GOARCH {
			return p.binary, nil
		}
	}
	p := platform{os: runtime.GOOS, arch: runtime.GOARCH, binary: filepath.Join(r.out, "bin", "lmosd_here")}
	return p.binary, r.build(p)
}

// platform writes the archive, the packages and the bill of materials of a platform.
func (r *release) platform(p platform, here string) error {
	files, err := r.contents(p, here)
	if err != nil {
		return err
	}
	name := "lmosd_" + r.version + "_" + p.String()
	if err := r.archive(filepath.Join(r.out, name+".tar.gz"), name, files); err != nil {
		return err
	}
	if err := r.bill(p, filepath.Join(r.out, name+".cdx.json")); err != nil {
		return err
	}
	if p.os != "linux" {
		return nil
	}
	return r.packages(p, files)
}

// sums writes SHA256SUMS of all files but the folder bin, for sha256sum -c.
func (r *release) sums() error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		sum, err := sumOf(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s  %s\n", sum, e.Name())
	}
	fmt.Print(b.String())
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), b.Bytes(), 0o644)
}

func sumOf(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256(b)), nil
}

// A file is a file of an archive or package.
type file struct {
	archived string // its path in the archive; empty: not there
	packaged string // its path in packages; empty: not there
	data     []byte
	mode     os.FileMode
	config   bool // the operator changes it: an upgrade keeps it
}

// contents returns the files of a platform, sorted by path.
func (r *release) contents(p platform, here string) ([]file, error) {
	binary, err := os.ReadFile(p.binary)
	if err != nil {
		return nil, err
	}
	third, err := r.licenses.of(p.binary)
	if err != nil {
		return nil, err
	}
	files := []file{
		{archived: "lmosd", packaged: "/usr/bin/lmosd", data: binary, mode: 0o755},
		{archived: "THIRD-PARTY-LICENSES", packaged: "/usr/share/doc/lmosd/THIRD-PARTY-LICENSES", data: third, mode: 0o644},
	}
	for name, packaged := range map[string]string{"LICENSE": "copyright", "README.md": "README.md", "CHANGELOG.md": "CHANGELOG.md"} {
		data, err := os.ReadFile(filepath.Join(r.root, name))
		if err != nil {
			return nil, err
		}
		if name == "LICENSE" {
			data = append([]byte("lmosd is licensed under the Apache License 2.0. THIRD-PARTY-LICENSES has the licenses of the libraries in it.\n\n"), data...)
		}
		files = append(files, file{archived: name, packaged: "/usr/share/doc/lmosd/" + packaged, data: data, mode: 0o644})
	}
	printed, err := r.printed(here)
	if err != nil {
		return nil, err
	}
	files = append(files, printed...)
	if p.os == "linux" {
		for name, packaged := range map[string]string{"lmosd.service": "/usr/lib/systemd/system/lmosd.service", "lmosd-user.service": "/usr/lib/systemd/user/lmosd.service",
			"lmosd.sysusers": "/usr/lib/sysusers.d/lmosd.conf"} {
			data, err := os.ReadFile(filepath.Join(r.root, "configs", "systemd", name))
			if err != nil {
				return nil, err
			}
			files = append(files, file{archived: "systemd/" + name, packaged: packaged, data: data, mode: 0o644})
		}
	}
	slices.SortFunc(files, func(x, y file) int {
		return cmp.Or(strings.Compare(x.archived, y.archived), strings.Compare(x.packaged, y.packaged))
	})
	return files, nil
}

// commented returns a configuration in which every key is a comment. A key in the file counts as chosen, also with its default: every node of
// the host would insist on the same ports.
func commented(data []byte) []byte {
	return regexp.MustCompile(`(?m)^([^#\n])`).ReplaceAll(data, []byte("#$1"))
}

// printed returns what the program prints about itself.
func (r *release) printed(here string) ([]file, error) {
	home, err := os.MkdirTemp("", "lmosd-dist")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(home)
	run := func(args ...string) ([]byte, error) {
		cmd := exec.Command(here, args...)
		if !filepath.IsAbs(here) {
			cmd = exec.Command("./"+here, args...)
		}
		cmd.Stderr = os.Stderr
		// Nothing of this machine is in the output.
		cmd.Env = []string{"HOME=" + home, "SOURCE_DATE_EPOCH=" + strconv.FormatInt(r.date.Unix(), 10)}
		b, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("lmosd %s: %w", strings.Join(args, " "), err)
		}
		return b, nil
	}
	var files []file
	for _, c := range []struct {
		archived, packaged string
		args               []string
		config             bool
	}{
		{"completions/lmosd.bash", "/usr/share/bash-completion/completions/lmosd", []string{"completion", "bash"}, false},
		{"completions/_lmosd", "/usr/share/zsh/vendor-completions/_lmosd", []string{"completion", "zsh"}, false},
		{"completions/lmosd.fish", "/usr/share/fish/vendor_completions.d/lmosd.fish", []string{"completion", "fish"}, false},
		{"lmosd.yaml", "/etc/lmosd/lmosd.yaml", []string{"config", "describe"}, true},
	} {
		data, err := run(c.args...)
		if err != nil {
			return nil, err
		}
		if c.config {
			data = commented(data)
		}
		files = append(files, file{archived: c.archived, packaged: c.packaged, data: data, mode: 0o644, config: c.config})
	}
	pages := filepath.Join(home, "man")
	if _, err := run("man", "--dir", pages); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(pages)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(pages, e.Name()))
		if err != nil {
			return nil, err
		}
		if data, err = compressed(data); err != nil {
			return nil, err
		}
		section := "man" + filepath.Ext(e.Name())[1:]
		files = append(files, file{archived: "man/" + section + "/" + e.Name() + ".gz", packaged: "/usr/share/man/" + section + "/" + e.Name() + ".gz", data: data, mode: 0o644})
	}
	return files, nil
}
