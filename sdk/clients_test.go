package sdk

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/agent"
	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testprogram"
	"github.com/lmosd/lmosd/td"
)

// A request is one operation of a client.
type request struct {
	ID         int             `json:"id"`
	Op         string          `json:"op"` // call, stream, task, read, write, find, watch or later
	Agent      string          `json:"agent,omitempty"`
	Name       string          `json:"name,omitempty"`
	Input      json.RawMessage `json:"input,omitempty"`
	Timeout    float64         `json:"timeout,omitempty"` // seconds
	Count      int             `json:"count,omitempty"`   // the stream or watch ends after so many items
	Event      string          `json:"event,omitempty"`
	Property   string          `json:"property,omitempty"`
	Capability string          `json:"capability,omitempty"` // of find
	Delegation string          `json:"delegation,omitempty"`
	Steps      json.RawMessage `json:"steps,omitempty"` // of task: methods of the task, with their arguments
}

// A libraryError is an error as a library reports it.
type libraryError struct {
	Message string         `json:"message"`
	Code    string         `json:"code"`
	Hint    string         `json:"hint"`
	Next    interact.Steps `json:"next"`
	Issues  []td.Issue     `json:"issues"`
}

func (e *libraryError) Error() string { return e.Code + " " + e.Message }

// A client sends a request. The items of a watch go to item, which may be nil.
type client func(r request, item func(json.RawMessage)) (json.RawMessage, error)

// clients open a client of each library, of the node at addr.
var clients = map[string]func(t *testing.T, h *host, addr string) client{
	"go": newGo,
	"python": func(t *testing.T, h *host, addr string) client {
		return newDriver(t, h.env(addr), testprogram.Path(t, "python3"), "testdata/client.py").ask
	},
	"js": func(t *testing.T, h *host, addr string) client {
		return newDriver(t, h.env(addr), testprogram.Path(t, "node"), "testdata/client.mjs").ask
	},
}

// A driver is a client in another process.
type driver struct {
	in io.WriteCloser

	mu      sync.Mutex
	last    int                 // id; owned by mu
	waiting map[int]chan answer // owned by mu
	err     error               // owned by mu
}

type answer struct {
	ID     int             `json:"id"`
	Item   json.RawMessage `json:"item"`
	Result json.RawMessage `json:"result"`
	Error  *libraryError   `json:"error"`
}

func newDriver(t *testing.T, env []string, args ...string) *driver {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d := &driver{in: in, waiting: map[int]chan answer{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.read(out)
	}()
	t.Cleanup(func() {
		in.Close()
		<-done
		if err := cmd.Wait(); err != nil || stderr.Len() > 0 {
			t.Errorf("%s: %v\n%s", args[1], err, stderr.String())
		}
	})
	return d
}

func (d *driver) read(out io.Reader) {
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		var a answer
		if err == nil {
			err = json.Unmarshal(line, &a)
		}
		d.mu.Lock()
		if err != nil {
			d.err = fmt.Errorf("the client ended: %w %.200s", err, line)
			for _, c := range d.waiting {
				close(c)
			}
			d.waiting = nil
			d.mu.Unlock()
			io.Copy(io.Discard, out)
			return
		}
		c := d.waiting[a.ID]
		d.mu.Unlock()
		c <- a
	}
}

func (d *driver) ask(r request, item func(json.RawMessage)) (json.RawMessage, error) {
	c := make(chan answer, 1000)
	d.mu.Lock()
	if d.err != nil {
		d.mu.Unlock()
		return nil, d.err
	}
	d.last++
	r.ID = d.last
	d.waiting[r.ID] = c
	raw, err := json.Marshal(r)
	if err == nil {
		_, err = d.in.Write(append(raw, '\n'))
	}
	d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for a := range c {
		switch {
		case a.Item != nil:
			if item != nil {
				item(a.Item)
			}
		case a.Error != nil:
			return nil, a.Error
		default:
			return a.Result, nil
		}
	}
	return nil, errors.New("the client ended")
}

// newGo is a client with api.Client, as of agent.Mesh.
func newGo(t *testing.T, h *host, addr string) client {
	mesh, err := api.Dial(addr, h.token)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(mesh.Close)
	return func(r request, item func(json.RawMessage)) (json.RawMessage, error) {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		raw, err := askGo(ctx, mesh, r, item)
		if err != nil {
			e := interact.AsError(err)
			return nil, &libraryError{e.Error(), e.Code.String(), e.Hint, e.Next, e.Issues}
		}
		return raw, nil
	}
}

func askGo(ctx context.Context, mesh *api.Client, r request, item func(json.RawMessage)) (json.RawMessage, error) {
	if r.Delegation != "" {
		mesh = mesh.With(r.Delegation + "\n")
	}
	switch r.Op {
	case "call": // finds the node through the environment
		if r.Delegation != "" {
			raw, _, err := mesh.Call(ctx, r.Agent, r.Name, interact.JSON, r.Input)
			return raw, err
		}
		return callGo(ctx, r)
	case "upload", "bytes", "file":
		return uploadGo(ctx, r)
	case "read":
		raw, _, err := mesh.Read(ctx, r.Agent, r.Name)
		return raw, err
	case "write":
		return nil, mesh.Write(ctx, r.Agent, r.Name, interact.JSON, r.Input)
	case "find":
		q := td.Query{Text: r.Name}
		if r.Capability != "" {
			q.Capability = []string{r.Capability}
		}
		list, err := mesh.Find(ctx, q, 0)
		if err != nil {
			return nil, err
		}
		names := []string{}
		for _, a := range list.Items {
			names = append(names, a.Name)
		}
		return json.Marshal(names)
	case "later": // its watch has no clock
		return nil, nil
	case "watch":
		kind, name := "events", r.Event
		if r.Property != "" {
			kind, name = "properties", strings.Trim(r.Property, "*")
		}
		for e, err := range mesh.Watch(ctx, r.Agent, kind, name, "") {
			if err != nil {
				return nil, err
			}
			raw, _ := json.Marshal([]any{e.Name, e.Data})
			item(raw)
			if r.Count--; r.Count == 0 {
				break
			}
		}
		return nil, nil
	}
	return nil, fmt.Errorf("no operation %q", r.Op)
}

func callGo(ctx context.Context, r request) (json.RawMessage, error) {
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.Timeout*float64(time.Second)))
		defer cancel()
	}
	var input any
	if r.Input != nil {
		input = r.Input
	}
	return agent.Call[json.RawMessage](ctx, r.Agent, r.Name, input)
}
