// Package buildinfo reports the version, the commit and the date of this program.
package buildinfo

import (
	"cmp"
	"runtime/debug"
	"strings"

	"github.com/lmosd/lmosd/internal/lazyregexp"
)

// The build of the packages sets these variables by -ldflags=-X, so that the same commit gives the same bytes in every folder. Other builds
// have what the Go command records in a checkout.
var version, commit, date string

// untagged is the version that Go makes for a commit without a tag before it (Go Modules Reference, "Pseudo-versions").
var untagged = lazyregexp.New(`^v0\.0\.0-\d{14}-[0-9a-f]{12}(\+dirty)?$`)

// Version returns the version without its v; "dev" for a build from a checkout without a tag.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && version == "" {
		return nameOf(info.Main.Version)
	}
	return cmp.Or(version, "dev")
}

// nameOf returns the version of a module without its v.
func nameOf(version string) string {
	if version == "" || version == "(devel)" || untagged().MatchString(version) {
		return "dev"
	}
	return strings.TrimPrefix(version, "v")
}

// Commit returns the revision, or "" if the build did not record it.
func Commit() string { return cmp.Or(commit, setting("vcs.revision")) }

// Date returns the date of the commit, in the form 2006-01-02; or "" if the build did not record it.
func Date() string {
	day, _, _ := strings.Cut(cmp.Or(date, setting("vcs.time")), "T")
	return day
}

// setting returns a setting of the build.
func setting(key string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
