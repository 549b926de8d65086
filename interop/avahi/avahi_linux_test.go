package avahi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lmosd/lmosd/discovery/dnssd"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/netns"
	"github.com/lmosd/lmosd/internal/testprogram"
	"github.com/lmosd/lmosd/interop/testmesh"
	"github.com/lmosd/lmosd/node"
)

// Avahi, on another host of the network, sees the node's entry by its service and by its subtype, its address and its end; entries of Avahi
// are introductions to the node, and explored.
func TestAvahi(t *testing.T) {
	t.Parallel()
	if !ownNetwork(t) {
		return
	}
	other := newAvahi(t)
	s, err := dnssd.New(dnssd.Options{Name: "lab 1.0", Network: "home"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Run(ctx) }()
	s.Announce(4680, true)

	const entry = `lab\0321\.0;_wot._tcp;local`
	for _, service := range []string{"_wot._tcp", "_directory._sub._wot._tcp"} {
		line := other.until(t, "avahi-browse -rptk "+service+byIPv4, `=;lan1;IPv4;`+entry)
		fields := strings.SplitN(line, ";", 10)
		text := strings.Fields(fields[9])
		slices.Sort(text)
		const want = `["lmos=home" "scheme=https" "td=/.well-known/wot" "type=Directory"]`
		if fields[7] != "10.9.0.1" || fields[8] != "4680" || fmt.Sprint(text) != want {
			t.Errorf("%s: got %s", service, line)
		}
	}
	other.until(t, "avahi-browse -aptk", entry)
	host := strings.Split(other.until(t, "avahi-browse -rptk _wot._tcp", `=;lan1;IPv4;`+entry), ";")[6]
	other.until(t, "avahi-resolve -4 -n "+host, "10.9.0.1")

	// The other host also serves its Thing, to which the introduction leads.
	other.do(t, `mkdir -p /run/www && echo '{"title":"Lamp"}' >/run/www/td.json; (cd /run/www; exec python3 -m http.server 8080 >/dev/null 2>&1) &`)
	other.until(t, "python3 -c 'import urllib.request as u; u.urlopen(\"http://10.9.0.2:8080/td.json\")' 2>&1 && echo served", "served")
	other.do(t, "avahi-publish -s 'Lamp No. 1' _wot._tcp 8080 TYPE=Thing Td=/td.json >/dev/null 2>&1 & lamp=$!")
	other.do(t, "avahi-publish -s 'Bulb' _wot._udp 5683 td=/b >/dev/null 2>&1 &")
	wait, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	seen := map[string]bool{}
	for c := range s.Watch(wait) {
		switch {
		case c.Gone && c.Instance == "Lamp No. 1":
			seen["gone"] = true
		case c.Instance == "Lamp No. 1" && c.URL == "http://10.9.0.2:8080/td.json" && !seen["lamp"]:
			seen["lamp"] = true
			for f, err := range dnssd.NewExplorer(dnssd.ExplorerOptions{}).Explore(wait, c.Introduction) {
				seen["explored"] = err == nil && strings.Contains(string(f.Raw), "Lamp")
				if err != nil {
					t.Error(err)
				}
			}
			other.do(t, "kill $lamp")
		case c.Instance == "Bulb" && c.URL == "coap://10.9.0.2:5683/b":
			seen["bulb"] = true
		}
		if len(seen) == 4 {
			break
		}
	}
	for _, what := range []string{"lamp", "explored", "bulb", "gone"} {
		if !seen[what] {
			t.Errorf("not seen: %s; there are %+v", what, s.Introductions())
		}
	}

	stop()
	<-ended
	for begun := time.Now(); strings.Contains(other.do(t, "avahi-browse -ptk _wot._tcp"), entry); {
		if time.Since(begun) > 10*time.Second {
			t.Fatal("Avahi still has the entry after its goodbye")
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// byIPv4 removes lines with IPv6 addresses: Avahi knows the host by both, and may resolve an entry received over IPv4 to either.
const byIPv4 = " | grep ';10[.]9[.]0[.]1;'"

// A node introduces its directory to another host, which reads it, and finds the Thing that the other host introduces.
func TestAvahiAndANode(t *testing.T) {
	t.Parallel()
	if !ownNetwork(t) {
		return
	}
	other := newAvahi(t)
	n, err := node.New(node.Options{Name: "kitchen", Network: "home", MDNS: true, Dir: t.TempDir(), Engine: node.EngineMemory,
		HTTP: &node.HTTP{Listen: "10.9.0.1:0", Operation: gateway.Operation{OpenDirectory: true}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()

	const entry = `=;lan1;IPv4;kitchen;_wot._tcp;local`
	fields := strings.Split(other.until(t, "avahi-browse -rptk _directory._sub._wot._tcp"+byIPv4, entry), ";")
	td := other.until(t, "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://"+fields[7]+":"+fields[8]+
		"/.well-known/wot\").read().decode())' 2>/dev/null", "ThingDirectory") // 503 until the TD of the node exists
	if !strings.Contains(td, `"http://10.9.0.1:`+fields[8]+`/things{`) || !strings.Contains(td, string(n.DID())) {
		t.Errorf("the other host reads %s", td)
	}

	other.do(t, `mkdir -p /run/www && cd /run/www && echo '"on"' >state.json && cat >td.json <<'END'
{"@context":"https://www.w3.org/2022/wot/td/v1.1","id":"urn:dev:lamp","title":"Lamp","securityDefinitions":{"n":{"scheme":"nosec"}},"security":"n",
"properties":{"state":{"type":"string","readOnly":true,"forms":[{"href":"state.json","op":"readproperty"}]}}}
END
cd / && (cd /run/www; exec python3 -m http.server 8080 >/dev/null 2>&1) &`)
	other.until(t, "python3 -c 'import urllib.request as u; u.urlopen(\"http://10.9.0.2:8080/td.json\")' 2>&1 && echo served", "served")
	other.do(t, "avahi-publish -s Lamp _wot._tcp 8080 td=/td.json >/dev/null 2>&1 & lamp=$!")
	ask := func() (string, error) {
		m, err := interact.Call(t.Context(), testmesh.InProcess(n), &interact.Message{Type: interact.ReadProperty, Thing: "urn:dev:lamp", Name: "state"})
		if err != nil {
			return "", err
		}
		return string(m.Data), nil
	}
	wait := func(what string, over func(string, error) bool) {
		t.Helper()
		for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
			got, err := ask()
			if over(strings.TrimSpace(got), err) {
				return
			}
			if time.Since(begun) > 30*time.Second {
				t.Fatalf("%s: it says %q, %v", what, got, err)
			}
		}
	}
	wait("the lamp was introduced", func(got string, err error) bool { return err == nil && got == `"on"` })
	other.do(t, "kill $lamp")
	wait("the lamp is gone", func(_ string, err error) bool { return err != nil && interact.AsError(err).Code == interact.NotFound })

	stop()
	if err := errors.Join(<-ended, n.Close()); err != nil {
		t.Error(err)
	}
}

// ownNetwork runs the test again in a network namespace, and returns true there.
func ownNetwork(t *testing.T) bool {
	t.Helper()
	for _, program := range []string{"avahi-daemon", "avahi-browse", "dbus-daemon", "ip", "python3"} {
		testprogram.Path(t, program)
	}
	if netns.Role(t) != "" {
		return true
	}
	if os.Getuid() != 0 {
		t.Skip("Avahi starts as root only")
	}
	netns.Run(t, "host")
	return false
}

// An avahi is another host on the network, 10.9.0.2: a shell with its own network, files and processes, Avahi, and its message bus.
type avahi struct {
	in  io.WriteCloser
	out *bufio.Scanner
}

func newAvahi(t *testing.T) *avahi {
	t.Helper()
	cmd := exec.Command("sh")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS}
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	cmd.Stderr = os.Stderr
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Skipf("no second network: %v", err)
	}
	t.Cleanup(func() {
		_ = in.Close() // the shell ends, and so do the other processes
		_ = cmd.Wait()
	})
	a := &avahi{in, bufio.NewScanner(out)}
	netns.IP(t, "link set lo up", "link add lan0 type veth peer name lan1", "link set lan0 up", "addr add 10.9.0.1/24 dev lan0",
		fmt.Sprintf("link set lan1 netns %d", cmd.Process.Pid))
	a.do(t, `ip link set lo up; ip link set lan1 up; ip addr add 10.9.0.2/24 dev lan1
mount -t tmpfs tmpfs /run && mkdir /run/avahi-daemon
cat >/run/bus.conf <<'END'
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=/run/bus</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/><allow user="*"/></policy></busconfig>
END
printf '[server]\nhost-name=elsewhere\nallow-interfaces=lan1\n[wide-area]\nenable-wide-area=no\n[rlimits]\n' >/run/avahi.conf
export DBUS_SYSTEM_BUS_ADDRESS=unix:path=/run/bus
dbus-daemon --config-file=/run/bus.conf --nofork --nopidfile 2>/dev/null &
for i in $(seq 100); do [ -S /run/bus ] && break; sleep 0.05; done
avahi-daemon -f /run/avahi.conf --no-drop-root --no-chroot --no-rlimits >/run/avahi.log 2>&1 &`)
	a.until(t, "avahi-daemon --check && grep -c 'startup complete' /run/avahi.log || true", "1")
	return a
}

// do runs a command on the other host and returns its output.
func (a *avahi) do(t *testing.T, command string) string {
	t.Helper()
	if _, err := fmt.Fprintf(a.in, "%s\necho; echo END-OF-OUTPUT\n", command); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for a.out.Scan() {
		if a.out.Text() == "END-OF-OUTPUT" {
			return all.String()
		}
		all.WriteString(a.out.Text() + "\n")
	}
	t.Fatalf("the other host ended at %q: %v", command, a.out.Err())
	return ""
}

// until repeats a command until a line of its output has the text, and returns the line.
func (a *avahi) until(t *testing.T, command, text string) string {
	t.Helper()
	var last string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		last = a.do(t, command)
		for line := range strings.Lines(last) {
			if strings.Contains(line, text) {
				return strings.TrimSpace(line)
			}
		}
	}
	t.Fatalf("%s: no line with %q in\n%s\n%s", command, text, last, a.do(t, "cat /run/avahi.log"))
	return ""
}
