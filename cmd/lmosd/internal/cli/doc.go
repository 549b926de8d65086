// Package cli provides what all commands share: environment, streams, global flags, output formats and error output.
package cli
