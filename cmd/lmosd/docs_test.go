package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/interact/credentials"
)

// A block is a piece of code in a page.
type block struct {
	info string // the text after the backticks
	text string
}

// blocks returns the pieces of code in a page.
func blocks(t *testing.T, page string) (list []block) {
	t.Helper()
	open := false
	for line := range strings.Lines(readFile(t, page)) {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && !open:
			list = append(list, block{info: strings.TrimSpace(info)})
		case !fence && open:
			list[len(list)-1].text += line
		}
		if fence {
			open = !open
		}
	}
	return list
}

// A step is a command in a page with its documented output.
type step struct {
	command string
	code    int
	prints  []string
}

var exitsWith = regexp.MustCompile(`   # exits with (\d+)$`)

// steps returns the commands of a console: lines that begin with "$ ", each with its output below it.
func steps(console string) (list []step) {
	for line := range strings.Lines(console) {
		line = strings.TrimRight(line, "\n")
		command, ok := strings.CutPrefix(line, "$ ")
		if !ok {
			list[len(list)-1].prints = append(list[len(list)-1].prints, line)
			continue
		}
		s := step{command: command}
		if m := exitsWith.FindStringSubmatch(command); m != nil {
			s.code, _ = strconv.Atoi(m[1])
		}
		list = append(list, s)
	}
	return list
}

// TestDocumentation runs the commands of the pages as a reader would, and compares what they print; "…" in a page stands for
// anything, on a line of its own for any lines, and "0s" for any number of seconds. A piece of code whose info names a file is that file.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	for _, page := range append(examplePages(t), "docs/agents.md", "docs/api.md", "docs/configuration.md", "docs/operations.md", "docs/install.md", "docs/observability.md",
		"docs/from/mcp.md", "docs/from/a2a.md", "docs/from/nats.md", "docs/from/consul.md", "docs/from/agntcy.md") {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			x := newUser(t, "LMOSD_FORCE_TTY=100", "NO_COLOR=1")
			x.weather()
			replace := append(freePorts(t, readFile(t, page)), "127.0.0.1:4668", defaultNode(x), "127.0.0.1:9000", echoServer(t), "127.0.0.1:8765", x.addr)
			real := strings.NewReplacer(replace...)
			x.copyExample(page, real)
			var all []step
			for _, b := range blocks(t, page) {
				if words := strings.Fields(b.info); len(words) == 2 {
					x.file(words[1], real.Replace(b.text))
				} else if b.info == "console" {
					all = append(all, steps(real.Replace(b.text))...)
				}
			}
			if len(all) == 0 {
				t.Fatal("the page has no commands")
			}
			x.shell(all)
		})
	}
}

// examplePages returns the page of each example, of which there are twelve.
func examplePages(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("../../examples/*/README.md")
	if err != nil || len(pages) < 12 {
		t.Fatalf("%d examples, %v", len(pages), err)
	}
	for i, p := range pages {
		pages[i] = strings.TrimPrefix(filepath.ToSlash(p), "../../")
	}
	return pages
}

// freePorts returns pairs for a replacer: the ports from 15000 to 19999 that a page names, and free ones.
func freePorts(t *testing.T, page string) (pairs []string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`\b1[5-9]\d{3}\b`).FindAllString(page, -1) {
		if slices.Contains(pairs, m) {
			continue
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(l.Addr().String())
		l.Close()
		pairs = append(pairs, m, port)
	}
	return pairs
}

// copyExample copies the files beside the page of an example to the folder of the user.
func (x *user) copyExample(page string, real *strings.Replacer) {
	x.t.Helper()
	if !strings.HasPrefix(page, "examples/") || page == "examples/weather/README.md" {
		return // the agent of examples/weather runs in the test
	}
	dir := filepath.Join("..", "..", filepath.Dir(page))
	entries, err := os.ReadDir(dir)
	if err != nil {
		x.t.Fatal(err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		b, err := os.ReadFile(path)
		if err != nil {
			x.t.Fatal(err)
		}
		if err := os.Chmod(x.file(e.Name(), real.Replace(string(b))), 0o700); err != nil {
			x.t.Fatal(err)
		}
	}
}

// defaultNode runs a node in the folder that commands look into by default, and returns the address of its API.
func defaultNode(x *user) string {
	n := x.node(".local/share/lmosd")
	return strings.TrimPrefix(n.API, "http://")
}

// echoServer is the agent that docs/agents.md describes.
func echoServer(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.Copy(w, r.Body)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// shell runs steps in one shell, which keeps variables, and compares each output.
func (x *user) shell(all []step) {
	x.t.Helper()
	const mark = "----- exit code "
	var script strings.Builder
	for _, s := range all {
		fmt.Fprintf(&script, "%s\nprintf '%%s%%d\\n' '%s' $?\n", s.command, mark)
	}
	cmd := exec.CommandContext(patient(x.t), "sh", "-c", script.String())
	var printed bytes.Buffer
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = x.env, x.home, &printed, &printed
	if err := cmd.Run(); err != nil {
		x.t.Fatalf("%v\n%s", err, printed.String())
	}
	rest := printed.String()
	for _, s := range all {
		before, after, found := strings.Cut(rest, mark)
		code, left, _ := strings.Cut(after, "\n")
		if rest = left; !found || code != strconv.Itoa(s.code) {
			x.t.Errorf("$ %s\nexit code %s, want %d\n%s", s.command, code, s.code, before)
		}
		if !prints(strings.Split(strings.TrimRight(before, "\n"), "\n"), s.prints) {
			x.t.Errorf("$ %s\nprints:\n%s\nthe page says:\n%s", s.command, before, strings.Join(s.prints, "\n"))
		}
	}
}

// prints reports whether lines match the page.
func prints(lines, page []string) bool {
	if len(page) == 0 {
		return len(lines) == 0 || len(lines) == 1 && lines[0] == ""
	}
	if page[0] == "…" {
		return skips(lines, page[1:])
	}
	return len(lines) > 0 && matches(lines[0], page[0]) && prints(lines[1:], page[1:])
}

// skips reports whether some suffix of lines matches the page.
func skips(lines, page []string) bool {
	if len(page) == 0 {
		return true
	}
	for i := range lines {
		if prints(lines[i:], page) {
			return true
		}
	}
	return false
}

// shortTimes are the seconds in a page, which a loaded machine exceeds.
var shortTimes = regexp.MustCompile(`\b0s\b`)

func matches(line, pattern string) bool {
	parts := strings.Split(pattern, "…")
	for i := range parts {
		parts[i] = shortTimes.ReplaceAllString(regexp.QuoteMeta(parts[i]), "[0-9]+s")
	}
	return regexp.MustCompile("^" + strings.Join(parts, ".*") + "$").MatchString(line)
}

func TestMatchingOfPages(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lines, page string
		want        bool
	}{
		"the same":            {"a\nb", "a\nb", true},
		"a part left open":    {"agent z6MkA here", "agent z6Mk… here", true},
		"another line":        {"a\nc", "a\nb", false},
		"a line more":         {"a\nb", "a", false},
		"a line less":         {"a", "a\nb", false},
		"lines left open":     {"a\nb\nc\nd", "a\n…\nd", true},
		"the end left open":   {"a\nb\nc", "a\n…", true},
		"nothing left open":   {"a\nd", "a\n…\nd", true},
		"a wrong end":         {"a\nb", "…\nc", false},
		"signs mean nothing":  {"a.b", "a+b", false},
		"a longer time":       {"took 1s", "took 0s", true},
		"only what was said":  {"a", "", false},
		"nothing, as it says": {"", "", true},
	} {
		page := strings.Split(test.page, "\n")
		if test.page == "" {
			page = nil
		}
		if got := prints(strings.Split(test.lines, "\n"), page); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

func TestCredentialsOfTheDocumentationAreValid(t *testing.T) {
	t.Parallel()
	found := 0
	for _, b := range blocks(t, "docs/agents.md") {
		if b.info == "json credentials.json" {
			found++
			path := filepath.Join(t.TempDir(), "credentials.json")
			if err := os.WriteFile(path, []byte(b.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if c, err := credentials.Load(path); err != nil || c.String() != "credentials of 2 things" {
				t.Errorf("%v, %v", c, err)
			}
		}
	}
	if found != 2 {
		t.Errorf("docs/agents.md has %d files of credentials", found)
	}
}

var (
	routeRow    = regexp.MustCompile("(?m)^\\| (GET|POST|PUT|DELETE) \\| `([^`]+)` \\| (open|read|call|admin) \\|")
	routeSource = regexp.MustCompile(`"(GET|POST|PUT|DELETE) (/[^" ]*)"`)
)

// TestRoutesOfTheDocumentation holds the table of docs/api.md against the source and a running node.
func TestRoutesOfTheDocumentation(t *testing.T) {
	t.Parallel()
	rows := routeRow.FindAllStringSubmatch(readFile(t, "docs/api.md"), -1)
	source := routeSource.FindAllStringSubmatch(readFile(t, "gateway/mux.go"), -1)
	if len(source) < 10 {
		t.Fatalf("found %d routes in the source", len(source))
	}
	for _, m := range source {
		if !slices.ContainsFunc(rows, func(r []string) bool { return r[1] == m[1] && r[2] == m[2] }) {
			t.Errorf("%s %s is not in docs/api.md", m[1], m[2])
		}
	}
	for _, m := range routeSource.FindAllStringSubmatch(readFile(t, "gateway/trust.go"), -1) { // the GETs among them give 404 without an organization
		page := readFile(t, "docs/api.md")
		if !strings.Contains(page, "| "+m[1]+" | `"+m[2]+"` |") && !strings.Contains(page, "| "+m[1]+", HEAD | `"+m[2]+"` |") {
			t.Errorf("%s %s is not in docs/api.md", m[1], m[2])
		}
	}
	x := newUser(t)
	n := x.node("n", "--http.public_url", "https://node.example")
	x.at(n).ok("publish", x.weather())
	for _, r := range rows {
		path := strings.NewReplacer("{id}", "weather", "{ref}", "weather", "actions/{name}", "actions/getWeather", "properties/{name}", "properties/units").Replace(r[2])
		code := status(t, r[1], n.API+path)
		refuses := r[3] == "admin" || path == "/metrics" // behind a proxy a caller without the token is unproven
		if want := map[bool]int{true: 401, false: 200}[refuses]; code != want && (want == 401 || code == 404 || code == 405 || code == 401) {
			t.Errorf("%s %s, for %s, gives %d", r[1], path, r[3], code)
		}
	}
	if code := status(t, "GET", n.API+"/nothing"); code != 404 {
		t.Errorf("an unknown path gives %d", code)
	}
}

func status(t *testing.T, method, url string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// TestOperationsPage holds what docs/operations.md lists against two running nodes.
func TestOperationsPage(t *testing.T) {
	t.Parallel()
	page := readFile(t, "docs/operations.md")
	x := newUser(t)
	file := x.weather() // before the nodes, which listen to its events
	a := x.node("a")
	b := x.node("b", "--mesh.bootstrap", a.P2P[0])
	x.at(a).ok("publish", file)
	eventually(t, "the other node finds the agent", func() bool { return x.at(b).lmosd("find", "--exit-status").code == 0 })
	x.at(b).ok("read", "weather", "units")
	watch := x.at(a).start("watch", "weather", "--limit", "1")
	eventually(t, "an event is told", func() bool {
		x.at(a).ok("call", "weather", "giveFeedback", "rating=5")
		return watch.out.String() != ""
	})

	files, err := os.ReadDir(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.Contains(page, "| `"+f.Name()+"` |") && !strings.Contains(page, "| `"+f.Name()+"/` |") {
			t.Errorf("the data folder has %s, which the page does not list", f.Name())
		}
	}
	x.at(b).ok("org", "init", "acme.example") // for the metrics of its members
	scraped := x.scrape(b)
	checkQueries(t, scraped+x.scrape(a))
	if served, listed := metricNames(scraped+x.scrape(a)), metricNames(readFile(t, "docs/observability.md")); !slices.Equal(served, listed) {
		t.Errorf("metrics served: %v\nlisted: %v", served, listed)
	}
	t.Run("promtool", func(t *testing.T) { checkMetrics(t, scraped) })
	for _, k := range configs.Keys() {
		if k.Name != "profile" {
			continue
		}
		for _, name := range k.Values {
			contains(t, readFile(t, "docs/configuration.md"), "\n| `"+name+"` | ")
		}
	}
	for word := range strings.FieldsSeq(page) {
		if key := strings.Trim(word, "`,.;:()"); strings.HasPrefix(word, "`") && isKey(key) && !slices.ContainsFunc(configs.Keys(), func(k configs.Key) bool {
			return k.Name == key || strings.HasPrefix(k.Name, key+".")
		}) {
			t.Errorf("there is no key %s", key)
		}
	}
}

// isKey reports whether a word looks like a key of the configuration.
func isKey(word string) bool {
	first, rest, ok := strings.Cut(word, ".")
	return ok && rest != "" && !strings.ContainsAny(rest, "/*(") && slices.ContainsFunc(configs.Keys(), func(k configs.Key) bool { return strings.HasPrefix(k.Name, first+".") })
}

func (x *user) scrape(n *nodeProcess) string {
	x.t.Helper()
	resp, err := http.Get(n.API + "/metrics")
	if err != nil {
		x.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		x.t.Fatal(err)
	}
	return string(b)
}

var metricName = regexp.MustCompile(`lmosd_[a-z_]+[a-z]`)

// metricNames returns the metrics that a text names, without the suffixes of histograms.
func metricNames(text string) []string {
	var names []string
	for _, n := range metricName.FindAllString(text, -1) {
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			n = strings.TrimSuffix(n, suffix)
		}
		names = append(names, n)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// curl is as much of the program of that name as the pages use; a machine need not have it.
func curl() {
	c := &request{method: "GET", header: http.Header{}}
	if err := c.parse(os.Args[1:]); err == nil {
		err = c.send(os.Stdout)
		if err == nil {
			return
		}
		fmt.Fprintln(os.Stderr, "curl:", err)
	} else {
		fmt.Fprintln(os.Stderr, "curl:", err)
	}
	os.Exit(1)
}

type request struct {
	method, url, socket, write string
	header                     http.Header
	body                       []byte
	discard                    bool
}

func (c *request) parse(args []string) (err error) {
	for i := 0; i < len(args); i++ {
		if args[i] == "-s" || args[i] == "-sG" { // what is encoded for the query goes there anyway
			continue
		}
		if !strings.HasPrefix(args[i], "-") {
			c.url = args[i]
			continue
		}
		if i++; i == len(args) {
			return fmt.Errorf("%s needs a value", args[i-1])
		}
		switch value := args[i]; args[i-1] {
		case "-X":
			c.method = value
		case "-H":
			name, text, _ := strings.Cut(value, ":")
			c.header.Set(name, strings.TrimSpace(text))
		case "-d", "--data-binary":
			if c.method == "GET" {
				c.method = "POST"
			}
			c.body = []byte(value)
			if file, ok := strings.CutPrefix(value, "@"); ok {
				c.body, err = os.ReadFile(file)
			}
		case "--data-urlencode":
			name, text, _ := strings.Cut(value, "=")
			c.url += "?" + name + "=" + url.QueryEscape(text)
		case "-o":
			c.discard = value == "/dev/null"
		case "-w":
			c.write = value
		case "--unix-socket":
			c.socket = value
		default:
			return fmt.Errorf("the flag %s is not known here", args[i-1])
		}
	}
	return err
}

func (c *request) send(out io.Writer) error {
	req, err := http.NewRequest(c.method, c.url, bytes.NewReader(c.body))
	if err != nil {
		return err
	}
	req.Header = c.header
	transport := &http.Transport{}
	if c.socket != "" {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", c.socket)
		}
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if !c.discard {
		if _, err := io.Copy(out, resp.Body); err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	fmt.Fprint(out, strings.NewReplacer("%{http_code}", strconv.Itoa(resp.StatusCode), `\n`, "\n").Replace(c.write))
	return nil
}
