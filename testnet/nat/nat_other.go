//go:build !linux

package nat

import "context"

// Missing returns an error: network namespaces exist on Linux only.
func Missing() error {
	return missing("it needs network namespaces of Linux", "run it on Linux, or in a virtual machine with Linux")
}

// Run returns the error of [Missing].
func Run(context.Context, Options) (*Report, error) { return nil, Missing() }
