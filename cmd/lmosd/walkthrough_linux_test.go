package main

import (
	"bufio"
	"bytes"
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lmosd/lmosd/internal/testprogram"
)

// walkthroughs are the pages that a newcomer follows from top to bottom.
var walkthroughs = []string{"docs/start/agent.md", "docs/start/hosts.md", "docs/start/mcp.md"}

// TestWalkthroughs follows the pages for newcomers on hosts that have nothing but lmosd, a shell, and Python where a page uses it. Each host
// has a file system, processes and a network of its own; the network joins the hosts of the page. The page shows what the commands
// print; with -update, the test writes it. LMOSD_PACKAGE names a Debian package, whose files the hosts get in place of this program.
func TestWalkthroughs(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"busybox", "ip", "unshare", "nsenter", "python3"} {
		testprogram.Path(t, program)
	}
	probe := exec.Command("unshare", "--mount", "--net", "--pid", "--fork", "sh", "-c", "mount --make-rprivate / && mount -t tmpfs none /mnt && mount -t proc proc /proc")
	if out, err := probe.CombinedOutput(); err != nil {
		t.Skipf("namespaces are not permitted: %v %s", err, out)
	}
	for _, page := range walkthroughs {
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			follow(t, page, hostsOf(t, readFile(t, page)))
		})
	}
}

// hostPrompt is the beginning of a command in a page: the name of a host, if there are several, and "$ ".
var hostPrompt = regexp.MustCompile(`^([a-z0-9-]*)\$ (.*)$`)

// follow runs the commands of a page in its order, and compares what they print.
func follow(t *testing.T, page string, hosts map[string]*host) {
	t.Helper()
	text := readFile(t, page)
	first := hosts[slices.MinFunc(slices.Collect(maps.Keys(hosts)), func(a, b string) int { return cmp.Compare(hosts[a].order, hosts[b].order) })]
	var written strings.Builder // the page with the output of this run
	var info []string
	open, called := false, false
	var begun time.Time // of the first command
	invite := ""        // the last invitation that a host printed, which a reader copies
	lines := strings.SplitAfter(text, "\n")
	for i := 0; i < len(lines); i++ {
		line := strings.TrimRight(lines[i], "\n")
		words, fence := strings.CutPrefix(line, "```")
		written.WriteString(lines[i])
		switch m := hostPrompt.FindStringSubmatch(line); {
		case fence:
			open, info = !open, strings.Fields(words)
			if open && len(info) > 1 { // a file, and its host
				h := first
				if len(info) > 2 {
					h = hosts[info[2]]
				}
				end := i + slices.IndexFunc(lines[i+1:], func(l string) bool { return strings.HasPrefix(l, "```") })
				h.write(info[1], strings.Join(lines[i+1:end+1], ""))
			}
		case open && len(info) == 1 && info[0] == "console" && m != nil:
			end := i + 1
			for end < len(lines) && !strings.HasPrefix(lines[end], "```") && !hostPrompt.MatchString(strings.TrimRight(lines[end], "\n")) {
				end++
			}
			s := step{command: m[2], prints: strings.Split(strings.TrimRight(strings.Join(lines[i+1:end], ""), "\n"), "\n")}
			if s.prints[0] == "" {
				s.prints = nil
			}
			if e := exitsWith.FindStringSubmatch(m[2]); e != nil {
				s.code, _ = strconv.Atoi(e[1])
			}
			s.command = strings.ReplaceAll(s.command, "lmos-invite:…", invite)
			shown, printed := hosts[m[1]].step(s)
			if begun.IsZero() {
				begun = time.Now()
			}
			if strings.HasPrefix(m[2], "lmosd call ") && !called {
				called = true
				t.Logf("the first call was answered %d ms after the first command", time.Since(begun).Milliseconds())
			}
			written.WriteString(shown)
			invite = cmp.Or(printedInvitation.FindString(printed), invite)
			i = end - 1
		}
	}
	if *update && written.String() != text {
		if err := os.WriteFile(filepath.Join("..", "..", page), []byte(written.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A host is a shell in namespaces of its own.
type host struct {
	t     *testing.T
	name  string
	order int // of its first command in the page
	pid   int
	in    io.WriteCloser
	out   *bufio.Reader
}

// hostScript makes the file system of a host, and runs the shell of it.
//
//go:embed testdata/host.sh
var hostScript string

// hostsOf starts the hosts of a page: their names are those in its prompts.
func hostsOf(t *testing.T, page string) map[string]*host {
	t.Helper()
	var names []string
	for _, line := range strings.Split(page, "\n") {
		if m := hostPrompt.FindStringSubmatch(line); m != nil && !slices.Contains(names, m[1]) {
			names = append(names, m[1])
		}
	}
	if len(names) == 0 {
		t.Fatal("the page has no commands")
	}
	program, err := exec.LookPath("lmosd") // TestMain puts this program there
	if err != nil {
		t.Fatal(err)
	}
	hosts := map[string]*host{}
	for i, name := range names {
		cmd := exec.Command("unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "sh", "-c", hostScript)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "ROOT=" + folder(t), "PROGRAM=" + program, "PACKAGE=" + os.Getenv("LMOSD_PACKAGE"),
			"NAME=" + cmp.Or(name, "laptop"), "GORACE=atexit_sleep_ms=0"}
		h := newHost(t, name, cmd)
		h.order = i
		h.step(step{command: "true"}) // the namespaces exist
		hosts[name] = h
	}
	if len(names) > 1 {
		connect(t, names, hosts)
	}
	return hosts
}

// newHost starts a program that makes a host and runs its shell. The host ends with the input of the shell.
func newHost(t *testing.T, name string, cmd *exec.Cmd) *host {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() {
		in.Close()
		kill := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() }) // its processes end with it
		_, _ = io.Copy(io.Discard, r)
		_ = cmd.Wait()
		kill.Stop()
		r.Close()
	})
	return &host{t: t, name: name, pid: cmd.Process.Pid, in: in, out: bufio.NewReader(r)}
}

// connect joins the networks of the hosts by a bridge, which is in the network of the first one: each has the address 10.77.0.N.
func connect(t *testing.T, names []string, hosts map[string]*host) {
	t.Helper()
	bridge := hosts[names[0]]
	run := func(h *host, args ...string) {
		args = append([]string{"--net=/proc/" + strconv.Itoa(h.pid) + "/ns/net", "ip"}, args...)
		if out, err := exec.CommandContext(patient(t), "nsenter", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v %s", args, err, out)
		}
	}
	run(bridge, "link", "add", "lan", "type", "bridge")
	run(bridge, "addr", "add", "10.77.0.1/24", "dev", "lan")
	run(bridge, "link", "set", "lan", "up")
	run(bridge, "route", "add", "default", "dev", "lan") // multicast needs a route
	for i, name := range names[1:] {
		h, port := hosts[name], fmt.Sprintf("port%d", i+2)
		run(bridge, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(h.pid))
		run(bridge, "link", "set", port, "master", "lan", "up")
		run(h, "addr", "add", fmt.Sprintf("10.77.0.%d/24", i+2), "dev", "eth0")
		run(h, "link", "set", "eth0", "up")
		run(h, "route", "add", "default", "dev", "eth0")
	}
}

// write makes a file in the home folder of the host.
func (h *host) write(name, text string) {
	h.t.Helper()
	const end = "the end of the file of the page"
	h.step(step{command: "cat > ~/" + name + " <<'" + end + "'\n" + text + end})
}

// run runs a command, and returns what it printed and its exit code.
func (h *host) run(command string) (printed string, code int) {
	h.t.Helper()
	printed, code, err := h.ask(command)
	if err != nil {
		h.t.Fatalf("%s$ %s: %v\n%s", h.name, command, err, printed)
	}
	return printed, code
}

// ask is run with an error if the shell has ended, or the command does not end.
func (h *host) ask(command string) (printed string, code int, err error) {
	const mark = "----- exit code "
	if _, err := fmt.Fprintf(h.in, "%s\nprintf '%%s%%d\\n' '%s' $?\n", command, mark); err != nil {
		return "", -1, fmt.Errorf("the shell ended: %w", err)
	}
	type read struct {
		text string
		code int
		err  error
	}
	done := make(chan read, 1)
	go func() {
		var all bytes.Buffer
		for {
			line, err := h.out.ReadString('\n')
			if before, code, found := strings.Cut(line, mark); found {
				all.WriteString(before)
				n, err := strconv.Atoi(strings.TrimSpace(code))
				done <- read{all.String(), n, err}
				return
			}
			all.WriteString(line)
			if err != nil {
				done <- read{all.String(), -1, err}
				return
			}
		}
	}()
	select {
	case r := <-done:
		return r.text, r.code, r.err
	case <-patient(h.t).Done():
		return "", -1, errors.New("it does not end")
	}
}

// step runs a command, compares its exit code and output with those of the page, and returns the lines for the page (those of the page if
// they match, else what the command printed), and all that it printed.
func (h *host) step(s step) (shown, printed string) {
	h.t.Helper()
	printed, code := h.run(s.command)
	if code != s.code {
		h.t.Errorf("%s$ %s\nexit code %d, want %d\n%s", h.name, s.command, code, s.code, printed)
	}
	lines := strings.Split(strings.TrimRight(printed, "\n"), "\n")
	if prints(narrow(lines), narrow(s.prints)) {
		if len(s.prints) == 0 {
			return "", printed
		}
		return strings.Join(s.prints, "\n") + "\n", printed
	}
	if !*update {
		h.t.Errorf("%s$ %s\nprints:\n%s\nthe page says:\n%s", h.name, s.command, printed, strings.Join(s.prints, "\n"))
	}
	return generalize(strings.TrimRight(printed, "\n")) + "\n", printed
}

// narrow replaces runs of spaces by one: the width of a column is that of its longest value, such as a duration.
func narrow(lines []string) []string {
	lines = slices.Clone(lines)
	for i, line := range lines {
		lines[i] = strings.TrimSpace(oneSpace(line))
	}
	return lines
}

var printedInvitation = regexp.MustCompile(`lmos-invite:\S+`)

// variable are the parts of an output that differ from run to run.
var variable = []struct {
	find    *regexp.Regexp
	replace string
}{
	{printedInvitation, "lmos-invite:…"},
	{regexp.MustCompile(`z6Mk\w+…?`), "z6Mk…"},
	{regexp.MustCompile(`12D3KooW\w+…?`), "12D3KooW…"},
	{regexp.MustCompile(`\bQm[1-9A-HJ-NP-Za-km-z]{20,}`), "Qm…"},
	{regexp.MustCompile(`home-[0-9a-z]{6}\b`), "home-…"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d(T\S+)?`), "…"},
	{regexp.MustCompile(`\b\d+(\.\d+)? ?(µs|ms|s)\b`), "…"},
	{regexp.MustCompile(`(invitation +)[0-9a-f]{12}`), "${1}…"},
	{regexp.MustCompile(`(words  +)\S.*`), "${1}…"},
	{regexp.MustCompile(`(all    –      ).*`), "${1}…"},
	{regexp.MustCompile(`revision \d+`), "revision …"},
	{regexp.MustCompile(`[0-9a-f]{64}`), "…"},
	{regexp.MustCompile(`/(tcp|udp)/(?:\d{5}|[0-35-9]\d{3})\b`), "/$1/…"}, // not the default port
}

// generalize replaces the parts of an output that differ from run to run.
func generalize(text string) string {
	for _, v := range variable {
		text = v.find.ReplaceAllString(text, v.replace)
	}
	return text
}
