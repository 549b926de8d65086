package node

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/netns"
	"github.com/lmosd/lmosd/td"
)

// Two hosts, each with loopback and one interface that containers have: a bridge (br-0) and the end of a pair (veth1). Each node
// announces the address that it has there, and finds and calls the agent of the other.
func TestHostsWithContainerInterfacesOnly(t *testing.T) {
	const near, far = "10.9.1.1", "10.9.1.2"
	switch netns.Role(t) {
	case "":
		netns.Run(t, "near")
	case "near":
		other := netns.Command(t, "far")
		in, err := other.StdinPipe()
		other.Stdout, other.Stderr = os.Stdout, os.Stderr
		if err = errors.Join(err, other.Start()); err != nil {
			t.Fatal(err)
		}
		netns.IP(t, "link set lo up", "link add br-0 type bridge", "link add veth0 type veth peer name veth1", "link set veth0 master br-0",
			"link set veth0 up", "link set br-0 up", "addr add "+near+"/24 dev br-0", fmt.Sprintf("link set veth1 netns %d", other.Process.Pid))
		n := containerHost(t, near, quiet())
		if _, err := fmt.Fprintln(in, n.Addrs()[0]); err != nil {
			t.Fatal(err)
		}
		meets(t, n, "near", "far", far)
		if err := errors.Join(in.Close(), other.Wait()); err != nil {
			t.Errorf("the other host: %v", err)
		}
	case "far":
		line := bufio.NewScanner(os.Stdin)
		if !line.Scan() {
			t.Fatal("the other host ended")
		}
		netns.IP(t, "link set lo up", "link set veth1 up", "addr add "+far+"/24 dev veth1")
		o := quiet()
		o.Bootstrap = []string{line.Text()}
		meets(t, containerHost(t, far, o), "far", "near", near)
		line.Scan() // until the other host needs this one no more
	}
}

// containerHost runs a node on all interfaces. It must announce the address addr and nothing else beyond loopback.
func containerHost(t *testing.T, addr string, o Options) *running {
	t.Helper()
	o.Loopback, o.Listen = false, []string{"/ip4/0.0.0.0/tcp/0"}
	n := start(t, o)
	if addrs := n.Addrs(); len(addrs) == 0 || !strings.HasPrefix(addrs[0], "/ip4/"+addr+"/") {
		t.Fatalf("the node announces %q, want %s first", addrs, addr)
	}
	if slices.ContainsFunc(n.Status().Warnings, func(w api.Warning) bool { return w.Title == "loopback-only" }) {
		t.Error("the node warns that it has no address but loopback")
	}
	return n
}

// meets publishes an agent called own, and waits until that called other is found, at addr, and answers.
func meets(t *testing.T, n *running, own, other, addr string) {
	t.Helper()
	publish(t, n, toolAt(own, "", newAgent(t).url))
	until(t, "the other agent is found", func() bool {
		for d := range n.mesh.directory.FindLocal(did.AsProcess(t.Context()), td.Query{Name: other}) {
			return strings.HasPrefix(d.Record.Hosts[0].Addrs[0], "/ip4/"+addr+"/")
		}
		return false
	})
	if err := ask(t, n, other); err != nil {
		t.Errorf("the other agent does not answer: %v", err)
	}
}
