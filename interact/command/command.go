// Package command exposes a command line as a Thing whose actions start one process per call.
//
//	stdin        the input as JSON; an input that is one JSON string comes as bare text; a request stream as it arrives
//	stdout       the output: JSON if it is one JSON value, else text, of which one line end at the end is dropped
//	environment  that of this process without its LMOSD_ variables, or what Options.Inherit names of it, Options.Env, and
//	             LMOSD_AGENT     the agent's name
//	             LMOSD_ACTION    the action that is called
//	             LMOSD_CALLER    the caller ([did.Principal.ID]): a node's DID, with #NAME for a consumer behind it; "local" on this machine
//	             LMOSD_CALLER_VIA  how that was proven: peer, socket, token, loopback, process, unproven
//	             LMOSD_DEADLINE  the deadline of the call, RFC 3339 in UTC; empty without one
//	             TRACEPARENT, TRACESTATE  the W3C trace context, if any
//	exit 0       completed; anything else failed, with the last 4 KiB of stderr; stderr alone is no failure
//
// When the caller leaves or the deadline passes, the process group gets SIGTERM, and after a grace SIGKILL. The same ends what a
// command leaves behind: its background processes have the grace to finish, then they are killed. A call returns after the
// process is gone. On Linux the process also dies with lmosd in any case. Its children do not: a command that only
// starts another program should use "exec".
//
// # Streams
//
// Output comes in parts, while the process runs, in three cases: Options.Chunk splits it; the caller accepts a type that is not
// JSON; or the caller sends a stream without accepted types. A slow caller delays only its own process.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Default limits.
const (
	// maxOutput is the limit of an output in bytes.
	maxOutput = 4 << 20
	// grace is the time between SIGTERM and SIGKILL.
	grace = 2 * time.Second
	// maxConcurrent is how many processes run at once.
	maxConcurrent = 16

	maxWaiting = 1024     // calls that wait for a process
	maxStderr  = 4 << 10  // bytes of stderr that are kept
	maxPiece   = 64 << 10 // bytes of a part of a raw output
)

// Options are the settings of an [Agent]. Either Command or Args is needed.
type Options struct {
	// Agent is the name in LMOSD_AGENT; empty means the name in the call.
	Agent string
	// Command is a command line for /bin/sh -c. It is set by the user and never contains data of a caller.
	Command string
	// Args is a program and its arguments, run without a shell.
	Args []string
	// Dir is where it runs; empty means where this process does.
	Dir string
	// Env are variables beside those of this process, "NAME=value".
	Env []string
	// Inherit names the variables of this process that it gets; a name that ends with * stands for all that begin so. Nil gives all.
	Inherit []string
	// Chunk is the delimiter that ends the parts of the output, for example "\n"; empty means the output is one.
	Chunk string
	// MaxOutput is the limit of an output, or of one part between delimiters, in bytes; 0 means 4 MiB. A raw stream has none.
	MaxOutput int64
	// Grace is the time between SIGTERM and SIGKILL; 0 means 2 s.
	Grace time.Duration
	// MaxConcurrent is how many processes run at once; 0 means 16. More calls wait until their deadline.
	MaxConcurrent int
	// Thing is the description, if there is one: an output whose schema says string is a string, even if it reads 42 or true.
	Thing *td.Thing
	// Log receives log records; nil discards them.
	Log *slog.Logger
}

// An Agent runs a process for each call. It is safe for concurrent use.
type Agent struct {
	o       Options
	argv    []string
	slots   chan struct{} // one for each process that runs
	waiting atomic.Int64
	stop    context.Context
	cancel  context.CancelCauseFunc

	mu      sync.Mutex
	closed  bool           // owned by mu
	running sync.WaitGroup // processes; Add only under mu, and not after closed
}

// errClosed is why calls end when the agent is closed.
var errClosed = errors.New("the agent was closed")

// New checks o and returns its agent. Nothing is run yet. The error is an [*interact.Error] of code [interact.ConfigInvalid].
func New(o Options) (*Agent, error) {
	argv, err := o.argv()
	if err != nil {
		return nil, err
	}
	for _, v := range o.Env {
		if i := strings.IndexByte(v, '='); i <= 0 || strings.IndexByte(v, 0) >= 0 {
			return nil, interact.Errorf(interact.ConfigInvalid, `write NAME=value`, "an environment entry has no name")
		}
	}
	if o.Dir != "" {
		if info, err := os.Stat(o.Dir); err != nil || !info.IsDir() {
			return nil, &interact.Error{Code: interact.ConfigInvalid, Title: fmt.Sprintf("expected a directory, got %s", o.Dir),
				Hint: "name one that exists", Err: err}
		}
	}
	o.MaxOutput = cmp.Or(max(o.MaxOutput, 0), maxOutput)
	o.Grace = cmp.Or(max(o.Grace, 0), grace)
	o.MaxConcurrent = cmp.Or(max(o.MaxConcurrent, 0), maxConcurrent)
	o.Env = slices.Clone(o.Env)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	a := &Agent{o: o, argv: argv, slots: make(chan struct{}, o.MaxConcurrent)}
	a.stop, a.cancel = context.WithCancelCause(context.Background())
	return a, nil
}

// argv is the command line of the process.
func (o *Options) argv() ([]string, error) {
	argv := slices.Clone(o.Args)
	switch {
	case o.Command != "" && len(o.Args) > 0:
		return nil, interact.Errorf(interact.ConfigInvalid, "keep one of them", "both a command line and arguments are given")
	case strings.TrimSpace(o.Command) != "":
		argv = []string{"/bin/sh", "-c", o.Command}
	case len(argv) == 0 || argv[0] == "":
		return nil, interact.Errorf(interact.ConfigInvalid, "for example exec:./agent.py", "there is no command to run")
	}
	if slices.ContainsFunc(argv, func(s string) bool { return strings.IndexByte(s, 0) >= 0 }) {
		return nil, interact.Errorf(interact.ConfigInvalid, "remove it", "the command has a NUL byte in it")
	}
	_, err := exec.LookPath(argv[0])
	if inDir := o.Dir != "" && strings.Contains(argv[0], "/"); err != nil && !inDir { // that is for the start to find out
		return nil, &interact.Error{Code: interact.ConfigInvalid, Title: fmt.Sprintf("the program %s is not here", argv[0]),
			Hint: "see that it is installed, executable and in the PATH", Err: err}
	}
	return argv, nil
}

// Do implements [interact.Thing]. It supports InvokeAction; other messages are [interact.NotAllowed]. An output in one part is one
// ActionStatus that is completed and has it: JSON, or octets (application/octet-stream) where it is neither JSON nor text; none
// for an empty output. An output in parts is an ActionStatus that is running for each, and one that is completed without data.
// A part that a delimiter ends is the value, if it is one of JSON, else text or octets, with the delimiter: put together
// ([interact.Join]) the parts of a text are what the command wrote. Those of a raw stream have at most 64 KiB, and the type that
// the caller accepts, else application/octet-stream. A caller that sends a stream and accepts JSON gets one output.
//
// Errors are an [*interact.Error]:
//   - AgentFailed, Remote: the process ended otherwise than with 0; the title has the end of stderr, on one line.
//   - TooLarge: the output passed the limit, and the process was killed.
//   - Timeout, Cancelled, Unreachable with Begun: the deadline passed, the caller left, or the agent was closed, and the process
//     was ended.
//   - Overloaded: no process was free before the deadline. Unreachable: it could not be started. Nothing was started.
//   - Invalid: input and a stream together, or an input with a JSON type that is not JSON.
//
// The goroutine that reads a message's Chunks ends with the chunk that comes after the interaction's end.
func (a *Agent) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		if err := a.call(ctx, m, yield); err != nil {
			yield(nil, err)
		}
	}
}

// call runs one process. It returns nil when all was yielded, or the consumer has left.
func (a *Agent) call(ctx context.Context, m *interact.Message, yield consumer) error {
	if m.Type != interact.InvokeAction {
		return interact.Errorf(interact.NotAllowed, "call one of its actions", "a command has no properties and no events (%s)",
			m.Type.Op())
	}
	in, err := input(m)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(a.stop, func() { cancel(errClosed) })()
	if !m.Deadline.IsZero() {
		var done context.CancelFunc
		ctx, done = context.WithDeadline(ctx, m.Deadline)
		defer done()
	}
	if err := a.enter(ctx, m); err != nil {
		return err
	}
	defer func() { <-a.slots }()
	p, err := a.start(ctx, cancel, m, in)
	if err != nil {
		return err
	}
	if media := a.raw(m); media != "" {
		return p.stream(media, yield)
	}
	if a.o.Chunk != "" {
		return p.pieces(yield)
	}
	return p.whole(yield)
}

// enter waits for a free process.
func (a *Agent) enter(ctx context.Context, m *interact.Message) error {
	if ctx.Err() != nil {
		return ended(ctx, m, false)
	}
	select {
	case a.slots <- struct{}{}:
		return nil
	default:
	}
	defer a.waiting.Add(-1)
	if a.waiting.Add(1) > maxWaiting {
		return interact.Errorf(interact.Overloaded, "try again later", "%s is busy, and %d calls wait already", m.Name, maxWaiting)
	}
	select {
	case a.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
	}
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return interact.Errorf(interact.Overloaded, "try again later, or let more of it run at once",
			"%s was busy until the deadline: %d calls run", m.Name, cap(a.slots))
	}
	return ended(ctx, m, false)
}

// ended returns the error of a call whose context ended.
func ended(ctx context.Context, m *interact.Message, hasStarted bool) error {
	cause := context.Cause(ctx)
	e := &interact.Error{Code: interact.Cancelled, Started: hasStarted, Title: m.Name + " was cancelled", Err: cause}
	switch {
	case errors.As(cause, new(*interact.Error)):
		return cause
	case errors.Is(cause, errClosed):
		e.Code, e.Title, e.Hint, e.Next = interact.Unreachable, m.Name+" was ended", "see whether it is offered again", interact.Next(interact.StepFind)
	case errors.Is(cause, context.DeadlineExceeded):
		e.Code, e.Title, e.Hint, e.Next = interact.Timeout, m.Name+" did not end in time", "call it as a task, or allow more time", interact.MoreTime()
	}
	return e
}

// Close ends all processes, as when their callers leave, and waits for their end. Later calls are Unreachable.
func (a *Agent) Close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.cancel(errClosed)
	a.running.Wait()
}

// add counts a process, unless the agent is closed.
func (a *Agent) add() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.running.Add(1)
	}
	return !a.closed
}
