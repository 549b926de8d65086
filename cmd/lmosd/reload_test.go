package main

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
)

// isDetached makes a program one without a controlling terminal, as service managers start it.
func isDetached(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// configured returns a running node with a configuration file, whose content edit replaces.
func (x *user) configured(text string) (n *nodeProcess, edit func(string)) {
	x.t.Helper()
	file := filepath.Join(x.home, "lmosd.yaml")
	edit = func(text string) {
		x.t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			x.t.Fatal(err)
		}
	}
	edit(text)
	with := *x
	with.prepare = isDetached
	return with.node("n", "-c", file), edit
}

func TestConfigReload(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	n, edit := x.configured("http: {hosts: [a.example]}\nagents: [\"exec:cat --name first\", \"exec:cat --name second\"]\n")
	at := x.at(n)
	contains(t, at.ok("config", "reload"), "no key has changed")
	edit("http: {hosts: [b.example]}\ntrust: {rate: {per_peer: 7/s}}\nmesh: {topology: none}\ntelemetry: {log: {level: warn}}\n" +
		"agents: [\"exec:cat --name second\", \"exec:cat --name third\", \"exec:./no-such-program --name fourth\"]\n")
	states, done := at.reloads()
	if states != "third started\nexec:./no-such-program --name fourth failed\nfirst stopped\n" {
		t.Errorf("agents: %s", states)
	}
	if got := strings.Join(done.Applied, " "); got != "trust.rate.per_peer http.hosts agents telemetry.log.level" {
		t.Errorf("applied %s", got)
	}
	if got := strings.Join(done.Restart, " "); got != "mesh.topology" {
		t.Errorf("restart %s", got)
	}
	all := at.ok("find", "-o", "json")
	for name, want := range map[string]bool{`"first"`: false, `"second"`: true, `"third"`: true} {
		if strings.Contains(all, name) != want {
			t.Errorf("found %s: %t, want %t\n%s\n%+v", name, !want, want, all, done.Agents)
		}
	}
	contains(t, at.ok("call", "third", "run", "hello"), "hello")
	contains(t, at.ok("status"), "LMOS-W060")
	var running api.Config
	if err := json.Unmarshal([]byte(at.ok("config", "running", "-o", "json")), &running); err != nil {
		t.Fatal(err)
	}
	for _, item := range running.Items {
		switch {
		case item.Key == "mesh.topology" && (item.Value != "mesh" || item.Waiting != "none" || item.Reloadable),
			item.Key == "trust.rate.per_peer" && (item.Value != "7/s" || item.Waiting != nil || !item.Reloadable):
			t.Errorf("%+v", item)
		}
	}
	edit("http: {hosts: [b.example]}\ntrust: {rate: {per_peer: 8}}\n")
	said := at.fails(cli.ExitUsage, "config", "reload")
	contains(t, said, "lmosd.yaml:2:26", "expected a rate", "^\n")
	contains(t, at.ok("config", "running"), "7/s")
	contains(t, at.ok("logs", "--level", "warn"), "configuration not reloaded")
}

// SIGHUP to a service reloads its configuration: good files and bad ones.
func TestHangupReloadsAService(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(x.home, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	var received buffer
	go func() {
		message := make([]byte, 4096)
		for {
			size, err := manager.Read(message)
			if err != nil {
				return // the test has ended
			}
			_, _ = received.Write(append(message[:size], '\n')) // a buffer accepts everything
		}
	}()
	x.env = append(x.env, "NOTIFY_SOCKET="+manager.LocalAddr().String())
	n, edit := x.configured("trust: {rate: {per_peer: 5/s}}\n")
	at := x.at(n)
	edit("trust: {rate: {per_peer: 6/s}}\n")
	n.signal(syscall.SIGHUP)
	eventually(t, "the rate is applied", func() bool { return strings.Contains(at.ok("config", "running"), "6/s") })
	edit("trust: {rate: {per_peer: 6/s\n")
	n.signal(syscall.SIGHUP)
	eventually(t, "the error is logged", func() bool { return strings.Contains(n.talk.String(), "configuration not reloaded") })
	contains(t, at.ok("config", "running"), "6/s")
	reports := regexp.MustCompile(`(?s)READY=1.*RELOADING=1\nMONOTONIC_USEC=[0-9]+\nREADY=1\nSTATUS=configuration reloaded\nRELOADING=1\nMONOTONIC_USEC=[0-9]+\nREADY=1\n` +
		`STATUS=configuration not reloaded: \S*lmosd.yaml:1:`)
	eventually(t, "the manager has both results", func() bool { return strings.Contains(received.String(), "configuration not reloaded") })
	if !reports.MatchString(received.String()) {
		t.Errorf("the service manager received\n%s", received.String())
	}
	if code := n.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// Reloads of a configuration with an error, at each place where it is found, change nothing and leave nothing behind.
func TestReloadsThatFailLeaveNothing(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	good := "http: {hosts: [a.example]}\ntrust: {rate: {per_peer: 5/s}}\nagents: [\"exec:cat --name echo\"]\n"
	n, edit := x.configured(good)
	at := x.at(n)
	token, err := os.ReadFile(filepath.Join(n.dir, "api.token"))
	if err != nil {
		t.Fatal(err)
	}
	reload := func() int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.API+"/v1/config/reload", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		return a.StatusCode
	}
	goroutines := func() int {
		found := regexp.MustCompile(`(?m)^go_goroutines (\d+)`).FindStringSubmatch(x.scrape(n))
		if found == nil {
			t.Fatal("no number of goroutines")
		}
		count, err := strconv.Atoi(found[1])
		if err != nil {
			t.Fatal(err)
		}
		return count
	}
	reload()
	before, running := goroutines(), at.ok("config", "running", "-o", "json")
	bad := filepath.Join(x.home, "bad.yaml")
	if err := os.WriteFile(bad, []byte("rules: 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	changed := "agents: [\"exec:rev --name echo\"]\nhttp: {hosts: [b.example], oidc: [{name: a, issuer: \"https://a.example\", audience: x"
	for name, text := range map[string]string{
		"the text":         changed,
		"the providers":    changed + ", ca: /absent.pem}]}\n",
		"the access rules": changed + "}]}\ntrust: {policy_file: " + bad + "}\n",
	} {
		edit(text)
		for range 100 {
			if status := reload(); status != http.StatusBadRequest {
				t.Fatalf("%s: status %d", name, status)
			}
		}
	}
	eventually(t, "no goroutines are left", func() bool { return goroutines() < before+20 })
	if now := at.ok("config", "running", "-o", "json"); now != running {
		t.Errorf("the configuration was\n%s\nand is\n%s", running, now)
	}
	contains(t, at.ok("call", "echo", "run", "hello"), "hello")
}
