package nat

import (
	"errors"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// Missing returns an error that names what [Run] lacks on this machine, with a hint how to get it; nil if nothing is missing.
func Missing() error {
	for _, p := range []struct{ program, from string }{{"ip", "iproute2"}, {"nft", "nftables"}} {
		if _, err := exec.LookPath(p.program); err != nil {
			return missing("the program "+p.program+" is not installed", "apt-get install "+p.from)
		}
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return missing("there is no /dev/net/tun", "modprobe tun   # in a container, add the device: docker run --device /dev/net/tun --cap-add NET_ADMIN --cap-add SYS_ADMIN")
	}
	if err := probe(); err != nil {
		return missing(err.Error(), "run it as root, or in a user namespace that may open /dev/net/tun: unshare --user --map-root-user lmosd testnet nat")
	}
	return nil
}

// probe makes a namespace with a TUN device and rules, as a router has them.
func probe() error {
	n, err := newNamespace()
	if err != nil {
		return err
	}
	device, err := n.tun()
	if err == nil {
		r := router{namespace: n, kind: AddressRestricted, host: hostAddr}
		err = errors.Join(r.load(), device.Close())
	}
	return errors.Join(err, n.close())
}

// isForbidden reports whether this process may make no network namespaces.
func isForbidden() bool {
	return onOwnThread(func() error { return unix.Unshare(unix.CLONE_NEWNET) }) != nil
}
