package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
)

// fakeLink is the link of a fake node.
const fakeLink = "http://127.0.0.1:4668/console/#once=AAECAwQFBgcICQoLDA0ODw"

// consoleRoutes adds the routes of the console.
func (n *fakeNode) consoleRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/console", n.guard(func(w http.ResponseWriter, r *http.Request) {
		var q api.ConsoleRequest
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			panic(err)
		}
		if q.Rights == "" {
			q.Rights = "admin"
		}
		answer(w, api.ConsoleLink{APIVersion: api.APIVersion, Kind: "ConsoleLink", URL: fakeLink, Expires: time.Now().Add(time.Minute), Rights: q.Rights})
	}))
	mux.HandleFunc("DELETE /v1/console", n.guard(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
}

// The browser is opened by a file that only the user can read: the link is not in the list of processes.
func TestConsoleOpensABrowser(t *testing.T) {
	t.Parallel()
	x := newUser(t, withToken(newFakeNode(t))...)
	x.script("xdg-open", `if [ -e broken ]; then exit 1; fi; stat -c %a "$1" >mode; cp "$1" page; echo "$@" >arguments.new; mv arguments.new arguments`)
	x.env = append(x.env, "PATH="+x.home+":"+os.Getenv("PATH"), "DISPLAY=:1", "XDG_RUNTIME_DIR="+x.home)
	stale := x.file("lmosd-console-1.html", "an older link")
	if err := os.Chtimes(stale, time.Time{}, time.Now().Add(-2*time.Minute)); err != nil {
		t.Fatal(err)
	}
	r := x.lmosd("console", "--rights", "call")
	if contains(t, r.errors, "opened the console in a browser, with the right call"); r.code != 0 || strings.Contains(r.out+r.errors, "once=") {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.errors)
	}
	var arguments []byte
	eventually(t, "the browser is opened", func() bool {
		var err error
		arguments, err = os.ReadFile(filepath.Join(x.home, "arguments"))
		return err == nil
	})
	read := func(name string) string {
		t.Helper()
		raw, err := os.ReadFile(filepath.Join(x.home, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	file := strings.TrimSpace(string(arguments))
	if !strings.HasPrefix(file, filepath.Join(x.home, "lmosd-console-")) || strings.Contains(file, "once") || read("mode") != "600\n" {
		t.Errorf("opened %q of mode %s", file, read("mode"))
	}
	contains(t, read("page"), `http-equiv="refresh" content="0; url=`+fakeLink+`"`)
	if !gone(stale) || gone(file) {
		t.Error("the old file is there, or the new one is not")
	}
}

// A node elsewhere cannot make the browser run a script or open a file.
func TestOnlyWebAddressesAreOpened(t *testing.T) {
	t.Parallel()
	for link, want := range map[string]bool{fakeLink: true, "https://node.example/console/#once=x": true, "javascript:alert(1)": false,
		"file:///etc/passwd": false, "data:text/html,x": false, "http:x": false, "//node.example/": false, "": false, "http://%zz": false} {
		if got := isWebAddress(link); got != want {
			t.Errorf("%s: %v", link, got)
		}
	}
}

func TestConsolePrintsTheLink(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env  []string
		args []string
		want string // on standard error; "" for no tunnel
	}{
		"no display":    {nil, nil, "ssh -N -L 4668:127.0.0.1:4668 HOST"},
		"over SSH":      {[]string{"DISPLAY=localhost:10.0", "USER=ada", "SSH_CONNECTION=192.0.2.7 50000 192.0.2.9 22"}, nil, "ssh -N -L 4668:127.0.0.1:4668 ada@192.0.2.9\n"},
		"another port":  {[]string{"SSH_CONNECTION=192.0.2.7 50000 2001:db8::9 2222"}, nil, "ssh -N -L 4668:127.0.0.1:4668 -p 2222 2001:db8::9\n"},
		"odd variables": {[]string{"USER=a b;c", "SSH_CONNECTION=x"}, nil, "'a b;c@HOST'\n"},
		"as asked":      {[]string{"DISPLAY=:1"}, []string{"--no-open"}, "within a minute, with the right admin"},
		"a program":     {[]string{"DISPLAY=:1"}, []string{"-o", "name"}, ""},
		"JSON":          {[]string{"DISPLAY=:1"}, []string{"--jq", ".url"}, ""},
		"no browser":    {nil, []string{"-v"}, "no browser: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newUser(t, append(withToken(newFakeNode(t)), c.env...)...)
			if name == "no browser" {
				x.env = append(x.env, "PATH="+x.home, "DISPLAY=:1")
			}
			r := x.lmosd(append([]string{"console"}, c.args...)...)
			if r.code != 0 || r.out != fakeLink+"\n" {
				t.Errorf("exit code %d: %s%s", r.code, r.out, r.errors)
			}
			if contains(t, r.errors, c.want); c.want == "" && r.errors != "" {
				t.Errorf("said %s", r.errors)
			}
			if files, err := filepath.Glob(filepath.Join(x.home, redirectFiles)); err != nil || len(files) > 0 {
				t.Errorf("left %v, %v", files, err)
			}
		})
	}
	if got := tunnelFor("https://node.example/console/#once=x", "", ""); got != "" {
		t.Errorf("a tunnel to a public address: %s", got)
	}
}

func TestConsoleEnd(t *testing.T) {
	t.Parallel()
	x := newUser(t, withToken(newFakeNode(t))...)
	contains(t, x.ok("console", "--end"), "all sessions of browsers ended")
	contains(t, x.ok("console", "--end", "-o", "json"), `"ended":true`)
	contains(t, x.fails(cli.ExitUsage, "console", "--end", "--rights", "read"), "--end takes no other option")
}

// A link of a real node signs in once; a session ends with the command.
func TestConsoleOfANode(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	n := x.node("n")
	var link api.ConsoleLink
	if err := json.Unmarshal([]byte(x.at(n).ok("console", "--rights", "read", "-o", "json")), &link); err != nil || link.Rights != "read" {
		t.Fatalf("got %+v, %v", link, err)
	}
	page, code, _ := strings.Cut(link.URL, "#once=")
	if page != n.API+"/console/" {
		t.Errorf("the link is %s, the API %s", link.URL, n.API)
	}
	send := func(method, path string, header http.Header, body string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, n.API+path, bytes.NewReader([]byte(body)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = header
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(raw)
	}
	resp, body := send("POST", "/console/session", http.Header{"Content-Type": {"application/json"}, "Origin": {n.API}}, `{"once":"`+code+`"}`)
	var s api.Session
	if err := json.Unmarshal([]byte(body), &s); err != nil || s.Rights != "read" || len(resp.Cookies()) != 1 {
		t.Fatalf("no session: %d %s", resp.StatusCode, body)
	}
	rights := func() string {
		t.Helper()
		var now api.Session
		_, body := send("GET", "/console/session", http.Header{api.SessionHeader: {s.Key}, "Cookie": {resp.Cookies()[0].Name + "=" + resp.Cookies()[0].Value}}, "")
		if err := json.Unmarshal([]byte(body), &now); err != nil {
			t.Fatal(err)
		}
		return now.Rights
	}
	if got := rights(); got != "read" {
		t.Errorf("the session may %s", got)
	}
	x.at(n).ok("console", "--end")
	if got := rights(); got != "none" {
		t.Errorf("after the end the session may %s", got)
	}
	contains(t, x.fails(cli.ExitRefused, "console", "--node", n.API), "LMOS-1401")
}
