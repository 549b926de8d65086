// Package command exposes a command line as a Thing whose actions start one process per call.
//
//	stdin        the input as JSON; an input that is one JSON string as text without quotes; a request stream as it arrives
//	stdout       the output: JSON if it is one JSON value, else text without the line end at its end
//	environment  that of this process without its LMOSD_ variables, or only the variables in Options.Inherit; Options.Env; and
//	             LMOSD_AGENT     the name of the agent
//	             LMOSD_ACTION    the name of the action
//	             LMOSD_CALLER    the caller ([did.Principal.ID]): the DID of a node, with #NAME for its consumer; "local" on this machine
//	             LMOSD_CALLER_VIA  the proof of the caller: peer, socket, token, loopback, process, unproven
//	             LMOSD_CALLER_ORG, LMOSD_CALLER_ROLES  the DID of the organization of the caller, and its roles there, separated by spaces; empty
//	                             without a verified membership
//	             LMOSD_CALLER_GROUPS  the groups of the caller, "ID/ROLE", separated by spaces; empty without one
//	             LMOSD_CALLER_LENT_BY  whose right the caller uses by a delegation; empty without one
//	             LMOSD_DEADLINE  the deadline of the call, RFC 3339 in UTC; empty without one
//	             TRACEPARENT, TRACESTATE  the W3C trace context, if any
//	exit 0       completed; any other exit code means failed, with the last 4 KiB of stderr; output on stderr is not a failure
//
// When the caller leaves or the deadline passes, the process group receives SIGTERM, and SIGKILL after a grace period. Background
// processes that outlive the command have the grace period to finish and are then killed. A call returns after the end of the process.
// On Linux the process is also killed when lmosd dies. This does not apply to its children: a command that only starts another program
// should use "exec".
//
// # Streams
//
// The output is yielded in parts, while the process runs, in three cases: Options.Chunk splits it; the caller accepts a type that is not
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

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Default limits.
const (
	// maxOutput is the limit of an output in bytes.
	maxOutput = 4 << 20
	// grace is the time between SIGTERM and SIGKILL.
	grace = 2 * time.Second
	// maxConcurrent is the number of concurrent processes.
	maxConcurrent = 16

	maxWaiting = 1024     // calls that wait for a process
	maxStderr  = 4 << 10  // bytes of stderr that are kept
	maxPiece   = 64 << 10 // bytes of a part of a raw output
)

// Options are the settings of an [Agent]. Either Command or Args is required.
type Options struct {
	// Agent is the name in LMOSD_AGENT; empty means the name in the call.
	Agent string
	// Command is a command line for /bin/sh -c. It is set by the user and never contains data of a caller.
	Command string
	// Args is a program and its arguments, run without a shell.
	Args []string
	// Dir is the working directory; empty means that of this process.
	Dir string
	// Env are additional variables, "NAME=value".
	Env []string
	// Inherit lists the inherited variables of this process; a name with * at its end is a prefix. Nil inherits all.
	Inherit []string
	// Chunk is the delimiter at the end of each part of the output, for example "\n"; empty means that the output has one part.
	Chunk string
	// MaxOutput is the limit of an output, or of one part between delimiters, in bytes; 0 means 4 MiB. A raw stream has none.
	MaxOutput int64
	// Grace is the time between SIGTERM and SIGKILL; 0 means 2 s.
	Grace time.Duration
	// MaxConcurrent limits the concurrent processes; 0 means 16. Further calls wait until their deadline.
	MaxConcurrent int
	// Thing is the description, if any: an output with the schema type string is a string, also if it is 42 or true.
	Thing *td.Thing
	// Log receives log records; nil discards them.
	Log *slog.Logger
}

// Identify sets LMOSD_AS, the DID of an agent with a key of its own, as which its processes call others (lmosd help environment). It is called before the
// first call.
func (a *Agent) Identify(agent did.DID) {
	a.o.Env = append(slices.Clip(a.o.Env), "LMOSD_AS="+string(agent))
}

// An Agent runs a process for each call. It is safe for concurrent use.
type Agent struct {
	o       Options
	argv    []string
	slots   chan struct{} // has an element for each running process
	waiting atomic.Int64
	stop    context.Context
	cancel  context.CancelCauseFunc

	mu      sync.Mutex
	closed  bool           // owned by mu
	running sync.WaitGroup // processes; Add only under mu, and not after closed
}

// errClosed is the cause of the end of calls when the agent is closed.
var errClosed = errors.New("the agent was closed")

// New checks o and returns its agent. It starts no process. The error is an [*interact.Error] of code [interact.ConfigInvalid].
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
				Hint: "set an existing directory", Err: err}
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

// argv returns the command line of the process.
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
	if inDir := o.Dir != "" && strings.Contains(argv[0], "/"); err != nil && !inDir { // a path in o.Dir is checked at the start
		return nil, &interact.Error{Code: interact.ConfigInvalid, Title: fmt.Sprintf("program %s not found", argv[0]),
			Hint: "check that it is installed, executable and in the PATH", Err: err}
	}
	return argv, nil
}

// Do implements [interact.Thing]. It supports InvokeAction; other messages are [interact.NotAllowed]. An output in one part is the data of
// one completed ActionStatus: JSON, or application/octet-stream for output that is neither JSON nor text; no data for an empty output. An
// output in parts has a running ActionStatus for each part, and a completed one without data. A part with a delimiter is a JSON value, or
// text or octets with the delimiter: the joined parts of a text ([interact.Join]) are the whole output. The parts of a raw stream have at
// most 64 KiB, and the type that the caller accepts, else application/octet-stream. A caller that sends a stream and accepts JSON gets one
// output.
//
// Errors are an [*interact.Error]:
//   - AgentFailed, Remote: the exit code is not 0; the title has the end of stderr, on one line.
//   - TooLarge: the output exceeded the limit, and the process was killed.
//   - Timeout, Cancelled, Unreachable with Started: the deadline passed, the caller left, or the agent was closed, and the process
//     was ended.
//   - Overloaded: no slot was free before the deadline. Unreachable: the process could not be started. No process was started.
//   - Invalid: an input and a stream, or invalid JSON as input with a JSON type.
//
// The goroutine that reads the Chunks of a message ends with the next chunk after the end of the interaction.
func (a *Agent) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		if err := a.call(ctx, m, yield); err != nil {
			yield(nil, err)
		}
	}
}

// call runs one process. It returns nil after the last reply, or if the consumer has left.
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

// enter waits for a free slot.
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
		return interact.Errorf(interact.Overloaded, "try again later", "%s is busy, and %d calls wait", m.Name, maxWaiting)
	}
	select {
	case a.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
	}
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return interact.Errorf(interact.Overloaded, "try again later, or raise the number of concurrent calls",
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
		e.Code, e.Title, e.Hint = interact.Unreachable, m.Name+" was ended", "check whether it is published again"
		e.Next = interact.Next(interact.StepFind)
	case errors.Is(cause, context.DeadlineExceeded):
		e.Code, e.Title, e.Hint = interact.Timeout, m.Name+" did not end in time", "call it as a task, or allow more time"
		e.Next = interact.MoreTime()
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
