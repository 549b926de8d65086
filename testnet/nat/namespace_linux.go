package nat

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// A namespace is a network namespace, which exists until it is closed and its processes have ended. An open socket of it remains usable.
type namespace struct{ file *os.File }

// newNamespace returns a namespace whose loopback is up.
func newNamespace() (*namespace, error) {
	var n *namespace
	err := onOwnThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		file, err := os.Open("/proc/thread-self/ns/net")
		n = &namespace{file}
		return err
	})
	if err == nil {
		err = n.run("", "ip", "link", "set", "lo", "up")
	}
	return n, err
}

// onOwnThread runs f on a thread of the system that ends with it, because f changes the namespace of its thread.
func onOwnThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // without the opposite: the runtime ends the thread
		result <- f()
	}()
	return <-result
}

// do runs f in the namespace: the sockets, files of /proc/sys/net and processes that its goroutine opens and starts belong to the namespace.
func (n *namespace) do(f func() error) error {
	return onOwnThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter a network namespace: %w", err)
		}
		return f()
	})
}

func (n *namespace) close() error { return n.file.Close() }

// path returns the name of the namespace for the program ip.
func (n *namespace) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd()) }

// run runs a program in the namespace.
func (n *namespace) run(input, name string, args ...string) error {
	return n.do(func() error {
		cmd := exec.Command(name, args...)
		cmd.Stdin = strings.NewReader(input)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
		}
		return nil
	})
}

// ip runs the program ip once, with one line of arguments for each command.
func (n *namespace) ip(lines ...string) error {
	return n.run(strings.Join(lines, "\n")+"\n", "ip", "-batch", "-")
}

// set writes settings of the kernel: a path below /proc/sys/net, "=" and the value.
func (n *namespace) set(settings ...string) error {
	return n.do(func() error {
		for _, s := range settings {
			path, value, _ := strings.Cut(s, "=")
			if err := os.WriteFile("/proc/sys/net/"+path, []byte(value), 0); err != nil {
				return err
			}
		}
		return nil
	})
}

// listenUDP opens a socket at an address of the namespace.
func (n *namespace) listenUDP(at netip.AddrPort) (c *net.UDPConn, err error) {
	err = n.do(func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	return c, err
}

// listenTCP opens a server at a free port of loopback in the namespace.
func (n *namespace) listenTCP() (l net.Listener, err error) {
	err = n.do(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp4", "127.0.0.1:0")
		return err
	})
	return l, err
}

// tun makes the network device wan, with addresses, and the default routes through it. What the kernel sends to it is read from the result.
func (n *namespace) tun(addrs ...netip.Addr) (device io.ReadWriteCloser, err error) {
	err = n.do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("open /dev/net/tun: %w", err)
		}
		r, err := unix.NewIfreq("wan")
		if err == nil {
			r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, r)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("make a TUN device: %w", err), unix.Close(fd))
		}
		device = os.NewFile(uintptr(fd), "wan")
		return nil
	})
	if err != nil {
		return nil, err
	}
	lines := []string{fmt.Sprintf("link set wan mtu %d up", mtu)}
	for _, a := range addrs {
		flags, all := "", "0.0.0.0/0"
		if a.Is6() {
			flags, all = " nodad", "::/0"
		}
		lines = append(lines, fmt.Sprintf("address add %s/%d dev wan%s", a, a.BitLen(), flags), fmt.Sprintf("route add %s dev wan", all))
	}
	if err := n.ip(lines...); err != nil {
		return nil, errors.Join(err, device.Close())
	}
	return device, nil
}

// forget deletes all connections that the kernel tracks in the namespace, as a router does that starts again: the message
// IPCTNL_MSG_CT_DELETE of nfnetlink without a tuple.
func (n *namespace) forget() error {
	return n.do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		const ctDelete, length = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2, unix.SizeofNlMsghdr + 4
		m := binary.NativeEndian.AppendUint32(nil, length)
		m = binary.NativeEndian.AppendUint16(m, ctDelete)
		m = binary.NativeEndian.AppendUint16(m, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
		m = append(m, make([]byte, 12)...) // sequence number, port, and struct nfgenmsg: all families
		if err := unix.Sendto(fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return err
		}
		answer := make([]byte, 4096)
		k, _, err := unix.Recvfrom(fd, answer, 0)
		if err != nil {
			return err
		}
		if k < unix.SizeofNlMsghdr+4 {
			return errors.New("the kernel sent a short answer")
		}
		if code := int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); code != 0 {
			return fmt.Errorf("delete the tracked connections: %w", unix.Errno(-code))
		}
		return nil
	})
}
