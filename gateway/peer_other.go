//go:build !linux

package gateway

import "net"

// userOf names nobody: this system's socket has no name for who is at its other end here.
func userOf(net.Conn) string { return "" }
