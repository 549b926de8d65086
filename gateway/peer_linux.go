package gateway

import (
	"net"
	"strconv"
	"syscall"
)

// userOf returns the user at the other end of a unix socket (SO_PEERCRED, unix(7)), "uid:1000", or "" if it is unknown.
func userOf(c net.Conn) string {
	s, ok := c.(syscall.Conn)
	if !ok {
		return ""
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return ""
	}
	var cred *syscall.Ucred
	if raw.Control(func(fd uintptr) {
		cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}) != nil || err != nil {
		return ""
	}
	return "uid:" + strconv.FormatUint(uint64(cred.Uid), 10)
}
