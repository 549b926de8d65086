//go:build !unix

package p2p

// files returns the limit of open files, which other systems do not have.
func files() int { return maxFiles }
