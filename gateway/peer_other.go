//go:build !linux

package gateway

import "net"

// userOf returns "": only Linux reports the user of a peer here.
func userOf(net.Conn) string { return "" }
