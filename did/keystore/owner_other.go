//go:build !unix

package keystore

import "io/fs"

// hasModes is not set: this system reports made-up modes, and has access control lists.
const hasModes = false

// checkOwner accepts all files: this system has no owners.
func checkOwner(string, fs.FileInfo) error { return nil }

// isRoots reports false: this system has no credentials of systemd.
func isRoots(fs.FileInfo) bool { return false }
