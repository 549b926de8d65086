// Package nodeaddr selects the node that a command connects to and explains why a connection failed.
package nodeaddr

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

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/configcmd"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/interact"
)

// A Target is the node of a command.
type Target struct {
	Addr    string // URL or socket
	DataDir string // of the node, if it is known
	Why     string // the reason for the choice, for -v
	Context string // its name, if the node is that of a context
	tokens  string // the folder of the token; it may be that of another node, which then rejects it
	token   string // of the token file of the context
	local   bool   // the node that `lmosd run` would start with the same flags
	service string // the data folder of the system service, if the node may be that
	console *cli.Console
}

// Find selects the node: --node, LMOSD_NODE, a data folder that is set, the current context, the socket in the data folder, the URL of the
// API. It sends no request. The error is an [*interact.Error] about the flag or the file with an invalid value.
func Find(c *cli.Console) (*Target, error) {
	for _, given := range []struct{ name, why string }{{c.Flags.Node, "--node"}, {c.Variable("LMOSD_NODE"), "LMOSD_NODE"}} {
		if given.name != "" {
			return named(c, given.name, given.why)
		}
	}
	contexts, err := configs.ReadContexts(configs.ContextsFile(c.Env))
	if err != nil {
		return nil, err
	}
	// A data folder that is set means its node, not the current context.
	if contexts.Current != "" && !ownFolder(c) {
		return fromContext(c, contexts, contexts.Current, current)
	}
	return local(c, serviceDir)
}

// serviceDir is the data folder of the system service.
const serviceDir = "/var/lib/lmosd"

// current is the reason for the node of the current context.
const current = "current context"

// ownFolder reports whether the user set a data folder or a configuration.
func ownFolder(c *cli.Console) bool {
	return cmp.Or(c.Flags.DataDir, c.Flags.Config, c.Variable("LMOSD_DATA_DIR"), c.Variable("LMOSD_CONFIG")) != ""
}

// named returns the node of a URL, a socket, or the name of a context.
func named(c *cli.Console, name, why string) (*Target, error) {
	addr, ok, err := address(name, why)
	if err != nil {
		return nil, err
	}
	if ok {
		t := &Target{Addr: addr, Why: why, console: c}
		if path, ok := strings.CutSuffix(strings.TrimPrefix(addr, "unix:"), "/lmosd.sock"); ok && !strings.Contains(addr, "://") {
			t.DataDir = path
		}
		// A broken configuration must not prevent access to other nodes.
		if conf, err := configcmd.Load(c, nil); err == nil {
			t.tokens = conf.Node.DataDir
		}
		return t, nil
	}
	contexts, err := configs.ReadContexts(configs.ContextsFile(c.Env))
	if err != nil {
		return nil, err
	}
	return fromContext(c, contexts, name, why)
}

// address returns name as a URL or a socket, whose path becomes absolute. It is false for what may be the name of a context.
func address(name, why string) (addr string, ok bool, err error) {
	switch {
	case strings.HasSuffix(name, ".sock") && strings.Contains(name, "/") && !strings.HasPrefix(name, "unix:"):
		addr, err = filepath.Abs(name)
		return addr, true, err
	case strings.Contains(name, "/") || strings.HasPrefix(name, "unix:"):
		return name, true, nil
	}
	if _, _, err := net.SplitHostPort(name); err == nil {
		return "", false, cli.Usage("write http://"+name, "%q is not a URL (%s)", name, why).Then(cli.StepRetype, name, "http://"+name)
	}
	return "", false, nil
}

// Address returns the URL or the socket of a new context, as it is in the file of contexts. The error is of code [interact.Usage].
func Address(name string) (string, error) {
	addr, ok, err := address(name, "--node")
	switch {
	case err != nil:
		return "", err
	case !ok:
		return "", cli.Usage("for example https://node.example:4668, or the path of its lmosd.sock", "%q is no URL, and no path of a socket", name)
	}
	client, err := api.Dial(addr, "")
	if err != nil {
		return "", err
	}
	client.Close()
	return addr, nil
}

func fromContext(c *cli.Console, contexts *configs.Contexts, name, why string) (*Target, error) {
	found, ok := contexts.Contexts[name]
	if !ok {
		known := slices.Sorted(maps.Keys(contexts.Contexts))
		list := cmp.Or(strings.Join(known, ", "), "none is known")
		e := cli.Usage(cli.HintFor(name, known, "--node takes a URL, a socket, or one of the contexts: "+list),
			"no context is named %q (%s)", name, why)
		if near := configs.Suggest(name, known); near != "" {
			e.Then(cli.StepRetype, name, near)
		}
		if why == current {
			e.Hint, e.Next = "return to the node of this host", interact.Next(cli.StepCommand, "lmosd context use -")
		}
		return nil, e
	}
	t := &Target{Addr: found.Node, DataDir: found.DataDir, tokens: found.DataDir, Why: why + " " + name, Context: name, console: c}
	if c.Variable("LMOSD_TOKEN") != "" {
		return t, nil
	}
	var err error
	t.token, err = found.Token(name)
	return t, err
}

// local returns the node of the configuration: its socket if a process listens on it, else its URL. A folder that is set has only its own
// node, whatever listens on the default port.
//
// Without its own socket, the socket of the system service with the data folder service follows, which only root can use.
func local(c *cli.Console, service string) (*Target, error) {
	conf, err := configcmd.Load(c, nil)
	if err != nil {
		// Commands in services of the system have no home folder.
		if t := ofService(c, service); t != nil && !ownFolder(c) && configs.DataDir(c.Env) == "" {
			return t, nil
		}
		return nil, err
	}
	dir, listen := conf.Node.DataDir, conf.HTTP.Listen
	t := &Target{Addr: conf.Socket(), DataDir: dir, tokens: dir, Why: "socket in the data folder", local: true, console: c}
	listens := listen != "" && !strings.HasSuffix(listen, ":0")
	if t.Addr != "" && (answers(t.Addr) || ownFolder(c) && !conf.Explicit("http.listen") || !listens) {
		return t, nil
	}
	if !ownFolder(c) && !conf.Explicit("http.listen") {
		if t := ofService(c, service); t != nil {
			return t, nil
		}
		t.service = service
	}
	t.Addr, t.Why = "http://"+reachable(listen), "http.listen"
	if conf.HTTP.TLS.Cert != "" {
		t.Addr = "https://" + reachable(listen)
		if strings.HasPrefix(conf.HTTP.PublicURL, "https://") { // its name is in the certificate
			t.Addr, t.Why = conf.HTTP.PublicURL, "http.public_url"
		}
	}
	return t, nil
}

// ofService returns the system service with the data folder service, or nil if no process listens on its socket.
func ofService(c *cli.Console, service string) *Target {
	socket := filepath.Join(service, "lmosd.sock")
	if !answers(socket) {
		return nil
	}
	return &Target{Addr: socket, DataDir: service, tokens: service, Why: "socket of the system service", console: c}
}

// reachable returns an address to connect to for a listen address: loopback is part of all wildcard addresses.
func reachable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if ip, bad := netip.ParseAddr(host); err == nil && (host == "" || bad == nil && ip.IsUnspecified()) {
		return "127.0.0.1:" + port
	}
	return listen
}

// answers reports whether a process listens on the socket; a killed process leaves the file.
func answers(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	// Nothing was sent, so a failing close loses nothing.
	_ = conn.Close()
	return true
}

// Token returns the token that changes require: LMOSD_TOKEN, else that of the token file of the context, which is for its node only, else the
// token in the data folder of a node on this host, which is never sent to another host. The socket requires none.
func (t *Target) Token() string {
	if token := t.console.Variable("LMOSD_TOKEN"); token != "" {
		return token
	}
	if t.token != "" {
		return t.token
	}
	if t.tokens == "" || !onLoopback(t.Addr) {
		return ""
	}
	b, err := os.ReadFile(filepath.Join(t.tokens, "api.token"))
	if err != nil {
		return "" // the node reports that it needs one
	}
	return strings.TrimSpace(string(b))
}

// InTheClear reports whether the token is sent to another host over plain HTTP, where others can read and use it.
func (t *Target) InTheClear() bool {
	u, err := url.Parse(t.Addr)
	return err == nil && strings.EqualFold(u.Scheme, "http") && !strings.EqualFold(u.Hostname(), "localhost") && !onLoopback(t.Addr) && t.Token() != ""
}

func onLoopback(addr string) bool {
	u, err := url.Parse(addr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return err == nil && ip.IsLoopback()
}

// Explain returns the error of a node that does not answer, with its cause: the process that holds its data folder, or the context of a node
// that may be on another host. Other errors are unchanged. The target may be nil.
func (t *Target) Explain(err error) error {
	e := interact.AsError(err)
	if e.Code != interact.NotRunning || t == nil || t.DataDir == "" && t.Context == "" {
		return err
	}
	better := *e
	if t.DataDir == "" {
		better.Title += ", the node of the context " + t.Context
		better.Hint, better.Next = "start it, or correct its address", interact.Next(cli.StepCommand, "lmosd context ls")
		if strings.HasPrefix(t.Why, current) {
			better.Hint, better.Next = "start it, or return to the node of this host", interact.Next(cli.StepCommand, "lmosd context use -")
		}
		return &better
	}
	better.Err = errors.New(t.holder())
	if t.service != "" && closed(t.service) {
		better.Hint, better.Next = "the system service has the data folder "+t.service+", which only root can read; use sudo, or see its state", interact.Next(cli.StepCommand, "lmosd service status")
	}
	return &better
}

// closed reports whether a folder exists that this user cannot read.
func closed(dir string) bool {
	_, err := os.ReadDir(dir)
	return errors.Is(err, fs.ErrPermission)
}

// Elsewhere warns if other commands do not use the node of this process, which has the API and the data folder.
func Elsewhere(c *cli.Console, api, dir string) {
	t, err := Find(c)
	if err != nil || t.local || t.Addr == api || t.DataDir == dir {
		return
	}
	c.Warn("other commands use " + t.Addr + " (" + t.Why + "), not this node")
}

// Folder returns the flags that make a command use the configuration and the folder of the node, each after a space; none for a node that
// may be on another host.
func (t *Target) Folder() string {
	switch {
	case t.local:
		return t.console.Folder()
	case t.DataDir == "":
		return ""
	}
	return " --data-dir " + terminal.Shell(t.DataDir)
}

// holder reports which process holds the data folder of a node that does not answer.
func (t *Target) holder() string {
	b, err := os.ReadFile(filepath.Join(t.DataDir, "lock"))
	pid, bad := strconv.Atoi(strings.TrimSpace(string(b)))
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && bad == nil && !alive(pid):
		return "no process holds the data folder " + t.DataDir
	case err == nil && bad == nil:
		return fmt.Sprintf("process %d holds the data folder %s and does not answer; it may be starting", pid, t.DataDir)
	}
	return "it is unknown whether a process uses the data folder " + t.DataDir
}

// alive reports whether a process has the id.
func alive(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil || pid <= 0 {
		return false
	}
	err = p.Signal(syscall.Signal(0)) // a test without a signal, kill(2)
	return err == nil || errors.Is(err, os.ErrPermission)
}
