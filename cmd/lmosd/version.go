package main

import (
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/internal/lazyregexp"
)

func newVersionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the version of this program",
		Long: "Prints the version, the commit and the Go version of this program. `lmosd status` prints the version of the\n" +
			"node.",
		Example: `  lmosd version
  lmosd version -o json --jq .version`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly),
		Args:        cli.Takes(0, 0),
		RunE: func(*cobra.Command, []string) error {
			v := buildInfo()
			return a.Show(cli.View{Doc: v, Names: []string{v.Version}, People: cli.Line(render.Join(" ", "lmosd", v.Version, v.Commit, v.Go, v.Platform))})
		},
	}
}

// version returns the version of this program; a build from a checkout without a tag is "dev".
func version() string { return buildInfo().Version }

// untagged is the version that Go makes for a commit without a tag before it (Go Modules Reference, "Pseudo-versions").
var untagged = lazyregexp.New(`^v0\.0\.0-\d{14}-[0-9a-f]{12}(\+dirty)?$`)

// nameOf returns the version of a module without its v; dev for a checkout without a tag.
func nameOf(version string) string {
	if version == "" || version == "(devel)" || untagged().MatchString(version) {
		return "dev"
	}
	return strings.TrimPrefix(version, "v")
}

// buildInfo returns the build information of this program.
func buildInfo() api.Version {
	v := api.Version{APIVersion: api.APIVersion, Kind: "Version", Version: nameOf(""), Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Version = nameOf(info.Main.Version)
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Commit = s.Value
		}
	}
	return v
}
