package testnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
)

// Ready is the content of the file of `lmosd run --ready-file FILE`.
type Ready struct {
	DID    did.DID  `json:"did"`
	PeerID string   `json:"peer_id"`
	P2P    []string `json:"p2p"`
	API    string   `json:"api"`
}

// stopFor is the time until an ending process is killed.
const stopFor = 12 * time.Second

// Processes starts n lmosd processes below o.Dir, each with a data directory, a log file and free ports. [Net.Close] ends them, unless
// [Net.Leave] was called.
func Processes(ctx context.Context, n int, o Options) (*Net, error) {
	o = o.withDefaults()
	if _, err := links(o.Topology, n, o.Seed); err != nil {
		return nil, err
	}
	t := &Net{Network: o.Network, Seed: o.Seed, Members: make([]*Member, n), options: o}
	g, start := errgroup.WithContext(ctx)
	for i := range n {
		g.Go(func() (err error) {
			t.Members[i], err = Spawn(start, i+1, o)
			return err
		})
	}
	err := g.Wait()
	for _, m := range t.Members {
		if m != nil {
			t.close = append(t.close, m.stop)
		}
	}
	if err == nil {
		err = t.connect(ctx, o)
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// Restart starts a node again that has ended, with its data directory and new ports, without connections, and with further flags of
// `lmosd run`. [Processes] only.
func (t *Net) Restart(ctx context.Context, m *Member, flags ...string) error {
	o := t.options
	o.Flags = slices.Concat(o.Flags, flags)
	again, err := Spawn(ctx, m.N, o)
	if err != nil {
		return err
	}
	*m = *again
	t.close = append(t.close, m.stop)
	return nil
}

// Leave lets the processes outlive this one; Close then does nothing.
func (t *Net) Leave() { t.close = nil }

// Spawn starts node n (from 1) without connections, and waits until it serves. The caller stops it.
func Spawn(ctx context.Context, n int, o Options) (*Member, error) {
	o = o.withDefaults()
	dir := filepath.Join(o.Dir, "node-"+strconv.Itoa(n))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	key, err := identify(dir, o.Seed, n)
	if err != nil {
		return nil, err
	}
	ready := filepath.Join(dir, "ready.json")
	if err := os.Remove(ready); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	m := &Member{N: n, DID: key.DID(), DataDir: dir, Socket: filepath.Join(dir, "lmosd.sock"), Log: filepath.Join(dir, "log")}
	for try := 1; ; try++ {
		p, err := command(o, m, ready)
		if err != nil {
			return nil, err
		}
		m.PID, m.stop, m.kill = p.PID(), p.stop, p.kill
		err = m.attach(ctx, ready, p)
		switch {
		case err == nil:
			return m, nil
		case try < 5 && o.Topology != "full" && strings.Contains(err.Error(), syscall.EADDRINUSE.Error()):
			continue // another program has taken a port since it was chosen
		}
		return nil, errors.Join(fmt.Errorf("node %d did not start: %w (log: %s)", n, err, m.Log), p.kill())
	}
}

// identify writes the key of node n into its folder. Another key there is that of another testnet.
func identify(dir string, seed int64, n int) (*keystore.Key, error) {
	key, err := Key(seed, n)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "identity.pem")
	if err := key.Save(path); !errors.Is(err, os.ErrExist) {
		return key, err
	}
	found, err := keystore.Open(path)
	if err == nil && found.DID() != key.DID() {
		err = interact.Errorf(interact.Usage, "use another folder, or remove this one: lmosd testnet down --purge",
			"%s has the key of another seed than %d", dir, seed)
	}
	return key, err
}

// A process is a started program.
type process struct {
	cmd  *exec.Cmd
	gone chan struct{} // closed at its end
}

// lastWords returns the reason of the end of a process from its log: the last error with its cause, else the last line.
func lastWords(log string) string {
	b, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	for i, line := range slices.Backward(lines) {
		words, ok := strings.CutPrefix(line, "error: ")
		if !ok {
			continue
		}
		if i+1 < len(lines) {
			if cause, ok := strings.CutPrefix(lines[i+1], "  cause  "); ok {
				words += ": " + cause
			}
		}
		return words
	}
	return "it ended: " + lines[len(lines)-1]
}

func command(o Options, m *Member, ready string) (*process, error) {
	log, err := os.OpenFile(m.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // The child has its own.
	args := []string{"run", "--profile", "test", "--data-dir", m.DataDir, "--mesh.network", o.Network,
		"--node.name", "node-" + strconv.Itoa(m.N), "--ready-file", ready}
	if o.Topology != "full" {
		own, err := secluded(o.freePorts)
		if err != nil {
			return nil, err
		}
		args = append(args, own...)
	}
	cmd := exec.Command(o.Binary, append(args, o.Flags...)...)
	cmd.Stdout, cmd.Stderr = log, log
	Detach(cmd)
	start := cmd.Start
	if o.In != nil {
		start = func() error { return o.In(cmd.Start) }
	}
	if err := start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, gone: make(chan struct{})}
	go func() {
		defer close(p.gone)
		_ = cmd.Wait() // How it ended is in its log.
	}()
	return p, nil
}

// secluded returns the flags of a node that does not announce its addresses, so that only its topology connects to it. The records that it
// signs contain them, so calls work.
func secluded(ports func() (tcp, udp int, err error)) ([]string, error) {
	if ports == nil {
		ports = freePorts
	}
	tcp, udp, err := ports()
	args := []string{"--listen.private=false"}
	// TCP first, which connects the members: the system then reports the end of a killed process at once.
	for _, addr := range []string{fmt.Sprintf("/ip4/127.0.0.1/tcp/%d", tcp), fmt.Sprintf("/ip4/127.0.0.1/udp/%d/quic-v1", udp)} {
		args = append(args, "--listen.p2p", addr, "--listen.announce", addr)
	}
	return args, err
}

// freePorts returns ports of 127.0.0.1 that are free now.
func freePorts() (tcp, udp int, err error) {
	t, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, 0, err
	}
	u, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return 0, 0, errors.Join(err, t.Close())
	}
	return t.Addr().(*net.TCPAddr).Port, u.LocalAddr().(*net.UDPAddr).Port, errors.Join(t.Close(), u.Close())
}

func (p *process) PID() int { return p.cmd.Process.Pid }

func (p *process) kill() error { return p.end(syscall.SIGKILL) }
func (p *process) stop() error { return p.end(syscall.SIGTERM) }

func (p *process) end(sig syscall.Signal) error {
	select {
	case <-p.gone:
		return nil
	default:
	}
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.gone:
		return nil
	case <-time.After(stopFor):
	}
	err := fmt.Errorf("process %d did not end within %v and was killed", p.PID(), stopFor)
	if p.cmd.Process.Signal(syscall.SIGABRT) == nil { // its goroutines go to its log
		select {
		case <-p.gone:
			return err
		case <-time.After(time.Second):
		}
	}
	return errors.Join(err, p.cmd.Process.Kill())
}

// attach waits for the ready file and creates the client.
func (m *Member) attach(ctx context.Context, ready string, p *process) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var r Ready
	ended := false
	err := Until(ctx, "the node writes its ready file", func() bool {
		select {
		case <-p.gone:
			ended = true
			return true
		default:
		}
		b, err := os.ReadFile(ready)
		return err == nil && json.Unmarshal(b, &r) == nil
	})
	switch {
	case err != nil:
		return err
	case ended:
		return errors.New(lastWords(m.Log))
	}
	m.API, m.Addrs = r.API, r.P2P
	m.Client, err = api.Dial(m.Socket, "")
	return err
}
