//go:build !unix

package keys

// closeOnExec does nothing: processes do not inherit file descriptors on this system.
func closeOnExec(int) {}
