package configcmd

import "io/fs"

// keepOwner does nothing: a file has the owner of its folder's permissions.
func keepOwner(string, fs.FileInfo) error { return nil }

// mayReplace returns nil: the system decides.
func mayReplace(fs.FileInfo) error { return nil }
