package main

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/internal/buildinfo"
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
func version() string { return buildinfo.Version() }

// buildInfo returns the build information of this program.
func buildInfo() api.Version {
	return api.Version{APIVersion: api.APIVersion, Kind: "Version", Version: version(), Commit: buildinfo.Commit(), Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH}
}
