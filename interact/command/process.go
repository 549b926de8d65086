package command

import (
	"context"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// A process is one run of the command. Its life:
//
//	started ── exits by itself ──────────────── dead ── output at its end, or grace ── the rest is killed ── reaped
//	        └─ context ends: SIGTERM ── grace: SIGKILL ─┘
//
// Between dead and reaped the process is a zombie: its id, which is that of the group, is not reused, so that a signal to the group does
// not reach other processes.
type process struct {
	agent  *Agent
	m      *interact.Message
	ctx    context.Context
	cancel context.CancelCauseFunc
	cmd    *exec.Cmd

	// Our ends of the pipes. stdin is nil without input.
	stdin        *os.File
	stdout, errs *os.File

	dead    chan struct{} // the process has exited
	reap    chan struct{} // the process may be reaped
	done    chan struct{} // the process is reaped, and its group is killed
	drained chan struct{} // stdout and stderr are at their ends
	open    atomic.Int32  // how many of the two are not at their ends

	outRead, errRead sync.Once // count the ends

	pipes sync.WaitGroup
	gone  chan struct{} // all goroutines of the process have ended, except the reader of Chunks

	// Owned by the reader of stdout.
	eof, cut bool
	late     int // bytes that were read after done

	// Written before gone is closed, and read after it.
	exit    error // of Wait
	stopped bool  // SIGTERM was sent
	stderr  tail
}

// Limits for processes that have left the group (setsid) and keep a pipe open after the group was killed: the time for a write, and the
// bytes of output, as many as a pipe can hold.
const (
	afterwards = 250 * time.Millisecond
	pipeSize   = 1 << 20
)

// start starts the command for m. The caller calls end.
func (a *Agent) start(ctx context.Context, cancel context.CancelCauseFunc, m *interact.Message, in []byte) (*process, error) {
	env, err := a.environment(ctx, m)
	if err != nil {
		return nil, err
	}
	p := &process{agent: a, m: m, ctx: ctx, cancel: cancel, cmd: exec.Command(a.argv[0], a.argv[1:]...)}
	for _, c := range []*chan struct{}{&p.dead, &p.reap, &p.done, &p.drained, &p.gone} {
		*c = make(chan struct{})
	}
	p.cmd.Dir, p.cmd.Env = a.o.Dir, env
	isolate(p.cmd)
	if !a.add() {
		cancel(errClosed)
		return nil, ended(ctx, m, false)
	}
	if err := p.begin(len(in) > 0 || m.Chunks != nil); err != nil {
		a.running.Done()
		return nil, unstarted(m, err)
	}
	p.open.Store(2)
	p.pipes.Go(p.readOutput)
	switch {
	case m.Chunks != nil:
		go p.feedChunks() // ends with the next chunk after the end of the call
	case len(in) > 0:
		p.pipes.Go(func() { p.feed(in) })
	}
	go p.supervise()
	return p, nil
}

// unstarted returns the error of a process that could not be started.
func unstarted(m *interact.Message, err error) error {
	e := &interact.Error{Code: interact.Unreachable, Title: m.Name + " could not be started", Err: err,
		Hint: "check that the command and its directory exist"}
	if scarce(err) {
		e.Code, e.Hint = interact.Overloaded, "check the limits of processes, memory and files: ulimit -a"
	}
	return e
}

// begin makes the pipes and starts the command.
func (p *process) begin(input bool) (err error) {
	var theirs []*os.File
	pipe := func() (r, w *os.File) {
		if err == nil {
			r, w, err = os.Pipe()
		}
		return r, w
	}
	var in *os.File
	if input {
		in, p.stdin = pipe()
		theirs = append(theirs, in)
	}
	stdout, out := pipe()
	stderr, errs := pipe()
	p.stdout, p.errs, theirs = stdout, stderr, append(theirs, out, errs)
	defer func() {
		for _, f := range theirs {
			_ = f.Close() // also nil
		}
		if err != nil {
			p.close()
		}
	}()
	if err != nil {
		return err
	}
	if p.cmd.Stdout, p.cmd.Stderr = out, errs; in != nil { // a nil *os.File is not a nil io.Reader
		p.cmd.Stdin = in
	}
	started := make(chan error)
	go p.own(started)
	return <-started
}

// own starts the process and waits for it. The kernel sends the signal of dieWithParent at the end of the thread that has started the
// process (prctl(2), PR_SET_PDEATHSIG): this goroutine keeps its thread until the end of the process.
func (p *process) own(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	if started <- err; err != nil {
		return
	}
	wait := awaitExit(p.cmd)
	close(p.dead)
	<-p.reap
	p.exit = wait()
	close(p.done)
}

// supervise ends the process when the context ends, and then the remaining processes of its group.
func (p *process) supervise() {
	defer p.agent.running.Done()
	defer close(p.gone)
	grace := p.agent.o.Grace
	var over <-chan time.Time
	stop, dead, drained := p.ctx.Done(), p.dead, p.drained
	for dead != nil || drained != nil {
		select {
		case <-stop:
			stop, p.stopped, over = nil, true, time.After(grace)
			terminate(p.cmd.Process)
			p.pipes.Go(p.discard)
		case <-dead:
			if dead = nil; over == nil {
				over = time.After(grace)
			}
		case <-drained:
			drained = nil
		case <-over:
			over, drained = nil, nil
			kill(p.cmd.Process)
			p.agent.o.Log.Info("command killed", "agent", p.agent.o.Agent, "action", p.m.Name, "grace", grace)
		}
	}
	kill(p.cmd.Process) // the remaining processes of the group
	close(p.reap)
	<-p.done
	p.lastly()
	p.pipes.Wait()
}

// lastly limits the waits for a pipe that a process outside the group keeps open.
func (p *process) lastly() {
	end := time.Now().Add(afterwards)
	_ = p.stdout.SetReadDeadline(end) // extended by each Read
	_ = p.errs.SetReadDeadline(end)
	if p.stdin != nil {
		_ = p.stdin.SetWriteDeadline(end)
	}
}

// Read reads stdout. The error is always [io.EOF], also if the call was ended, whose output is not used.
func (p *process) Read(b []byte) (n int, err error) {
	if p.isDone() {
		_ = p.stdout.SetReadDeadline(time.Now().Add(afterwards))
	}
	if p.eof || p.isCut() {
		return 0, io.EOF
	}
	n, err = p.stdout.Read(b)
	if p.isDone() {
		p.late += n
	}
	if err != nil || p.late > pipeSize {
		p.eof, err = true, io.EOF // the other error of a pipe is its deadline
		p.drain(&p.outRead)
	}
	if p.isCut() {
		return 0, io.EOF // discard may have read the output before it
	}
	return n, err
}

// isCut reports whether the call was ended before the end of its output.
func (p *process) isCut() bool {
	p.cut = p.cut || p.ctx.Err() != nil
	return p.cut
}

// discard reads stdout that has no other reader, so that a full pipe does not block the process.
func (p *process) discard() {
	_, _ = io.Copy(io.Discard, p.stdout)
	p.drain(&p.outRead)
}

func (p *process) isDone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// readOutput reads stderr.
func (p *process) readOutput() {
	_, _ = io.Copy(&p.stderr, p.errs)
	p.drain(&p.errRead)
}

// drain counts a pipe that is at its end, once.
func (p *process) drain(pipe *sync.Once) {
	pipe.Do(func() {
		if p.open.Add(-1) == 0 {
			close(p.drained)
		}
	})
}

// feed writes the input. A process need not read it.
func (p *process) feed(in []byte) {
	_, _ = p.stdin.Write(in)
	_ = p.stdin.Close()
}

// feedChunks writes the request stream as it arrives. An error of the stream ends the call.
func (p *process) feedChunks() {
	defer func() { _ = p.stdin.Close() }()
	for chunk, err := range p.m.Chunks {
		if err != nil {
			p.cancel(err)
			return
		}
		if _, err := p.stdin.Write(chunk); err != nil {
			return // closed by the process, or by close
		}
	}
}

// close closes our ends.
func (p *process) close() {
	for _, f := range []*os.File{p.stdin, p.stdout, p.errs} {
		_ = f.Close() // also nil
	}
}
