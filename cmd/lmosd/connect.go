package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/gateway"
)

// A target is the node that a command asks.
type target struct {
	addr    string // URL or socket
	dataDir string // of the node, if that is certain
	tokens  string // the folder that has the token; it may be that of another node, which then refuses it
	why     string // how it was chosen, for -v
	local   bool   // the node that `lmosd run` would start with the same flags
}

// client returns a client of the node to ask. Nothing is sent yet.
func (a *app) client() (*gateway.Client, error) {
	t, err := a.find()
	if err != nil {
		return nil, err
	}
	a.target = t
	a.note("asking %s (%s)", t.addr, t.why)
	return gateway.Dial(t.addr, a.token(t))
}

// find looks for the node: --node, LMOSD_NODE, the data folder if one is named, the current context, the socket in the data
// folder, the API's address.
func (a *app) find() (target, error) {
	for _, named := range []struct{ name, why string }{{a.flags.node, "--node"}, {variable(a.env, "LMOSD_NODE"), "LMOSD_NODE"}} {
		if named.name != "" {
			return a.named(named.name, named.why)
		}
	}
	contexts, err := configs.ReadContexts(configs.ContextsFile(a.env))
	if err != nil {
		return target{}, err
	}
	// Whoever names a folder means the node in it, not the one that happens to be current.
	if contexts.Current != "" && !a.ownFolder() {
		return fromContext(contexts, contexts.Current, "current context")
	}
	return a.local()
}

// ownFolder reports whether the user named a data folder or a configuration.
func (a *app) ownFolder() bool {
	return cmp.Or(a.flags.dataDir, a.flags.config, variable(a.env, "LMOSD_DATA_DIR"), variable(a.env, "LMOSD_CONFIG")) != ""
}

// named returns the node of a URL, a socket, or the name of a context.
func (a *app) named(name, why string) (target, error) {
	if strings.Contains(name, "/") || strings.HasPrefix(name, "unix:") {
		if strings.HasSuffix(name, ".sock") && !strings.HasPrefix(name, "unix:") {
			path, err := filepath.Abs(name)
			if err != nil {
				return target{}, err
			}
			name = path
		}
		t := target{addr: name, why: why}
		if path, ok := strings.CutSuffix(strings.TrimPrefix(name, "unix:"), "/lmosd.sock"); ok && !strings.Contains(name, "://") {
			t.dataDir = path
		}
		// A broken configuration must not keep anybody from another node.
		if c, err := a.config(nil); err == nil {
			t.tokens = c.Node.DataDir
		}
		return t, nil
	}
	if _, _, err := net.SplitHostPort(name); err == nil {
		return target{}, usage("--node http://"+name, "%q is no URL (%s)", name, why)
	}
	contexts, err := configs.ReadContexts(configs.ContextsFile(a.env))
	if err != nil {
		return target{}, err
	}
	return fromContext(contexts, name, why)
}

func fromContext(contexts *configs.Contexts, name, why string) (target, error) {
	c, ok := contexts.Contexts[name]
	if !ok {
		known := slices.Sorted(maps.Keys(contexts.Contexts))
		return target{}, usage(hintFor(name, known, "--node takes a URL, a socket, or one of the contexts: "+orNone(known)),
			"no context is named %q (%s)", name, why)
	}
	return target{addr: c.Node, dataDir: c.DataDir, tokens: c.DataDir, why: why + " " + name}, nil
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none is known"
	}
	return strings.Join(list, ", ")
}

// local returns the node of the configuration: its socket if something answers there, else its address. A folder that was
// named has no other node than its own, whatever listens on the default port.
func (a *app) local() (target, error) {
	c, err := a.config(nil)
	if err != nil {
		return target{}, err
	}
	t := target{addr: c.Socket(), dataDir: c.Node.DataDir, tokens: c.Node.DataDir, why: "socket in the data folder", local: true}
	listens := c.HTTP.Listen != "" && !strings.HasSuffix(c.HTTP.Listen, ":0")
	if t.addr != "" && (answers(t.addr) || a.ownFolder() && !c.Explicit("http.listen") || !listens) {
		return t, nil
	}
	t.addr, t.why = "http://"+reachable(c.HTTP.Listen), "http.listen"
	return t, nil
}

// reachable returns an address to connect to for one to listen on: every address of the host includes loopback.
func reachable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if ip, bad := netip.ParseAddr(host); err == nil && (host == "" || bad == nil && ip.IsUnspecified()) {
		return "127.0.0.1:" + port
	}
	return listen
}

// answers reports whether a process listens on the socket; a file may be left of one that was killed.
func answers(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	// Nothing was said, so nothing can be lost by a failing close.
	_ = conn.Close()
	return true
}

// token returns what the node wants to see before it changes anything: LMOSD_TOKEN, else the token file of a node on this
// host. The socket needs none, and the file's token is never sent to another host.
func (a *app) token(t target) string {
	if token := variable(a.env, "LMOSD_TOKEN"); token != "" {
		return token
	}
	if t.tokens == "" || !onLoopback(t.addr) {
		return ""
	}
	b, err := os.ReadFile(filepath.Join(t.tokens, "api.token"))
	if err != nil {
		return "" // the node says so if it needs one
	}
	return strings.TrimSpace(string(b))
}

func onLoopback(addr string) bool {
	u, err := url.Parse(addr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return err == nil && ip.IsLoopback()
}

// startLine is the command that starts the node that did not answer.
func (a *app) startLine() string {
	if a.target.local {
		return "lmosd run" + a.same()
	}
	return "lmosd run --data-dir " + shell(a.target.dataDir)
}

// holder says which process holds the data folder of a node that does not answer.
func (t target) holder() string {
	b, err := os.ReadFile(filepath.Join(t.dataDir, "lock"))
	pid, bad := strconv.Atoi(strings.TrimSpace(string(b)))
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && bad == nil && !alive(pid):
		return "no process holds the data folder " + t.dataDir
	case err == nil && bad == nil:
		return fmt.Sprintf("process %d holds the data folder %s and does not answer; it may be starting", pid, t.dataDir)
	}
	return "whether a process holds the data folder " + t.dataDir + " cannot be told"
}

// alive reports whether a process has the id.
func alive(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil || pid <= 0 {
		return false
	}
	err = p.Signal(syscall.Signal(0)) // asks only, kill(2)
	return err == nil || errors.Is(err, os.ErrPermission)
}
