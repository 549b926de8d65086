package main

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/gateway"
)

func newVersionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the version of this program",
		Long:  "Prints the version, the commit and the Go version of this program. `lmosd status` has that of the node.",
		Example: `  lmosd version
  lmosd version -o json --jq .version`,
		Annotations: about(scopeLocal, readOnly),
		Args:        takes(0, 0),
		RunE: func(*cobra.Command, []string) error {
			v := buildInfo()
			return a.show(view{doc: v, names: []string{v.Version}, people: func(s *screen, _ bool) {
				s.line(joinNotEmpty(" ", "lmosd", v.Version, v.Commit, v.Go, v.Platform))
			}})
		},
	}
}

// version returns the version of this program; a build from a checkout without a tag is "dev".
func version() string { return buildInfo().Version }

// buildInfo says what the build noted about itself.
func buildInfo() gateway.Version {
	v := gateway.Version{APIVersion: gateway.APIVersion, Kind: "Version", Version: "dev", Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "(devel)" {
		v.Version = cmp.Or(info.Main.Version, v.Version)
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Commit = s.Value
		}
	}
	return v
}
