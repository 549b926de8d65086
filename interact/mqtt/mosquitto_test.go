package mqtt

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testprogram"
)

// A mosquitto is the Mosquitto broker as a process.
type mosquitto struct {
	addr, config string
	process      *exec.Cmd
	ended        chan struct{} // closed when it has
}

// startMosquitto runs Mosquitto on a free port, with more lines of its configuration.
func startMosquitto(t testing.TB, lines ...string) *mosquitto {
	t.Helper()
	testprogram.Path(t, "mosquitto")
	for range 20 { // another process may take the port first
		// Below the ephemeral ports: a concurrent test could get such a port before Mosquitto.
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(20_000+rand.N(10_000)))
		if err != nil {
			continue
		}
		m := &mosquitto{addr: l.Addr().String(), config: filepath.Join(t.TempDir(), "mosquitto.conf")}
		l.Close()
		_, port, _ := net.SplitHostPort(m.addr)
		if len(lines) == 0 {
			lines = []string{"allow_anonymous true"}
		}
		text := fmt.Sprintf("listener %s 127.0.0.1\npersistence false\nlog_dest none\n%s\n", port, strings.Join(lines, "\n"))
		if err := os.WriteFile(m.config, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.stop)
		if m.start(t) {
			return m
		}
	}
	t.Fatal("mosquitto does not start")
	return nil
}

// start runs the process and reports whether it listens soon.
func (m *mosquitto) start(t testing.TB) bool {
	t.Helper()
	m.process = exec.Command("mosquitto", "-c", m.config)
	if err := m.process.Start(); err != nil {
		t.Fatal(err)
	}
	ended, process := make(chan struct{}), m.process
	m.ended = ended
	go func() {
		_ = process.Wait()
		close(ended)
	}()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end) && !isClosed(ended); time.Sleep(5 * time.Millisecond) {
		conn, err := net.Dial("tcp", m.addr)
		if err != nil {
			continue
		}
		_, _ = conn.Write(connect3)
		n, _ := conn.Read(make([]byte, 1)) // it accepts before it answers
		if conn.Close(); n > 0 {
			return true
		}
	}
	m.stop()
	return false
}

// stop kills the process.
func (m *mosquitto) stop() {
	if m.process != nil {
		_ = m.process.Process.Kill()
		<-m.ended
		m.process = nil
	}
}

func TestMosquittoRequestAndReply(t *testing.T) {
	t.Parallel()
	m := startMosquitto(t)
	c, thing := newClient(t, Options{}), describe(t, "mqtt://"+m.addr, kotlin)
	// Before the agent subscribes, the broker reports that there is no subscriber.
	for _, q := range []*interact.Message{invoke("fade", "{}"), read("level"), write("level", "1")} {
		_, err := ask(t, c, thing, q)
		if e := wantError(t, err, interact.Unreachable); e.Started || !strings.Contains(e.Title, "no subscriber") {
			t.Errorf("%s: %+v", q.Name, e)
		}
	}
	lampAgent(t, m.addr)
	for range 3 {
		if got, err := ask(t, c, thing, invoke("fade", `{}`)); err != nil || string(got.Data) != `"faded by {}"` {
			t.Errorf("invoke: %v, %v", got, err)
		}
		if got, err := ask(t, c, thing, read("level")); err != nil || string(got.Data) != "42" {
			t.Errorf("read: %v, %v", got, err)
		}
		if got, err := ask(t, c, thing, write("level", "1")); err != nil || got.Type != interact.Acknowledgement {
			t.Errorf("write: %v, %v", got, err)
		}
	}
}

func TestMosquittoPublishAndObserve(t *testing.T) {
	t.Parallel()
	for _, version := range []byte{5, 4} {
		m := startMosquitto(t)
		p := newPeer(t, m.addr, nil)
		p.sub(t, "lamp/level/set", "lamp/note")
		c, thing := newClient(t, Options{}), describe(t, "mqtt://"+m.addr, w3c)
		if version == 4 {
			c.learn(m.addr, 4, time.Now())
		}
		for _, q := range []*interact.Message{write("level", "7"), write("note", `"dark"`)} {
			if got, err := ask(t, c, thing, q); err != nil || got.Type != interact.Acknowledgement {
				t.Errorf("version %d, %s: %v, %v", version, q.Name, got, err)
			}
			p.next(t)
		}
		_, err := ask(t, c, thing, invoke("fade", "{}")) // without a subscriber; only MQTT 5 reports that
		if (err == nil) != (version == 4) {
			t.Errorf("version %d: %v", version, err)
		}
		p.pub(t, &paho.Publish{Topic: "lamp/level", QoS: 1, Retain: true, Payload: []byte("1")})
		level := observe(t, c.Thing(thing), &interact.Message{Type: interact.ObserveProperty, Name: "level"})
		if got := level.next(t); string(got.Data) != "1" || !got.Time.IsZero() {
			t.Errorf("version %d: %+v", version, got)
		}
		if got, err := ask(t, c, thing, read("level")); err != nil || string(got.Data) != "1" {
			t.Errorf("version %d: read %v, %v", version, got, err)
		}
		p.pub(t, &paho.Publish{Topic: "lamp/level", QoS: 1, Retain: true, Payload: []byte("2")})
		if got := level.next(t); string(got.Data) != "2" {
			t.Errorf("version %d: %s: the reading of another was taken for news", version, got.Data)
		}
		// The broker is killed and restarted: observations continue.
		m.stop()
		if !m.start(t) {
			t.Fatal("another process has taken the port")
		}
		p = newPeer(t, m.addr, nil)
		for i := 3; ; i++ {
			p.pub(t, &paho.Publish{Topic: "lamp/level", QoS: 1, Payload: []byte(strconv.Itoa(i))})
			select {
			case got := <-level.replies:
				if n, err := strconv.Atoi(string(got.Data)); err != nil || n < 3 {
					t.Errorf("version %d: %s", version, got.Data)
				}
			case <-time.After(20 * time.Millisecond):
				if i < 500 {
					continue
				}
				t.Errorf("version %d: the observation did not come back", version)
			}
			break
		}
	}
}

// Mosquitto does send a message once for each filter that covers it.
func TestMosquittoOverlappingFilters(t *testing.T) {
	t.Parallel()
	m := startMosquitto(t)
	thing := describe(t, "mqtt://"+m.addr, `"events": {
		"all": {"forms": [{"href": "BASE", "mqv:filter": "a/#"}]}, "one": {"forms": [{"href": "BASE", "mqv:filter": ["a/b",
			"a/+"]}]}}`)
	c, p := newClient(t, Options{}), newPeer(t, m.addr, nil)
	all := observe(t, c.Thing(thing), &interact.Message{Type: interact.SubscribeEvent, Name: "all"})
	one := observe(t, c.Thing(thing), &interact.Message{Type: interact.SubscribeEvent, Name: "one"})
	until(t, "subscribed", func() bool { return listening(c) == 2 })
	for i := range 20 {
		p.pub(t, &paho.Publish{Topic: "a/b", QoS: 1, Payload: []byte(strconv.Itoa(i))})
		for _, r := range []*reader{all, one} {
			if got := r.next(t); string(got.Data) != strconv.Itoa(i) {
				t.Fatalf("got %s, want %d", got.Data, i)
			}
		}
	}
}

func TestMosquittoCredentials(t *testing.T) {
	t.Parallel()
	testprogram.Path(t, "mosquitto_passwd")
	dir, err := os.MkdirTemp("", "mosquitto") // readable for the user that Mosquitto becomes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	passwords := filepath.Join(dir, "passwords")
	if out, err := exec.Command("mosquitto_passwd", "-b", "-c", passwords, "lmosd", "geheim-7").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for path, mode := range map[string]os.FileMode{dir: 0o755, passwords: 0o644} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	m := startMosquitto(t, "allow_anonymous false", "password_file "+passwords)
	thing := describe(t, "mqtt://"+m.addr, strings.ReplaceAll(secured, `"mqv:topic": "a"`, `"mqv:topic": "a", "mqv:retain": true`))
	good := newClient(t, Options{Credentials: store(t, "mqtt://"+m.addr, "lmosd", "geheim-7")})
	bad := newClient(t, Options{Credentials: store(t, "mqtt://"+m.addr, "lmosd", "falsch-8")})
	for _, version := range []byte{5, 4} {
		good.learn(m.addr, version, time.Now())
		bad.learn(m.addr, version, time.Now())
		if _, err := ask(t, good, thing, invoke("own", "1")); err != nil {
			t.Errorf("version %d: %v", version, err)
		}
		_, err = ask(t, bad, thing, invoke("own", "1"))
		if e := wantError(t, err, interact.Unauthenticated); strings.Contains(everything(e), "falsch-8") {
			t.Errorf("version %d: %s", version, everything(e))
		}
	}
}

// The tools of Mosquitto are consumers of the broker of this package.
func TestMosquittoToolsAskTheBroker(t *testing.T) {
	t.Parallel()
	testprogram.Path(t, "mosquitto_rr")
	b := serve(t, newMesh(t))
	_, port, _ := net.SplitHostPort(b.Addr().String())
	out, err := exec.Command("mosquitto_rr", "-h", "127.0.0.1", "-p", port, "-V", "5", "-q", "1", "-W", "20", "-t",
		"lamp/actions/echo", "-e", "lamp/actions/echo/reply/1", "-m", `{"a":1}`).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != `{"a":1}` {
		t.Errorf("%v: %q", err, out)
	}
}
