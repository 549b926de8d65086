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
// Between dead and reaped the process is a zombie: its id, which is that of the group, cannot become another's, so that a signal
// to the group never reaches another process.
type process struct {
	agent  *Agent
	m      *interact.Message
	ctx    context.Context
	cancel context.CancelCauseFunc
	cmd    *exec.Cmd

	stdin        *os.File // nil without input; this and those are our ends
	stdout, errs *os.File

	dead    chan struct{} // the process has exited
	reap    chan struct{} // it may be waited for
	done    chan struct{} // it was, and nothing of its group is left
	drained chan struct{} // stdout and stderr are at their ends
	open    atomic.Int32  // how many of the two are not

	outRead, errRead sync.Once // their ends are counted

	pipes sync.WaitGroup
	gone  chan struct{} // all goroutines of the process have ended, but for the one that reads Chunks

	// Owned by the reader of stdout.
	eof, cut bool
	late     int // bytes that were read after done

	// Written before gone is closed, and read after it.
	exit    error // of Wait
	stopped bool  // SIGTERM was sent
	stderr  tail
}

// What holds a pipe open when the group was killed has left the group on purpose (setsid). It gets no more time than this for a
// write, and no more output than a pipe can hold.
const (
	afterwards = 250 * time.Millisecond
	pipeSize   = 1 << 20
)

// start runs the command for m. It returns when it runs, or could not be started. Who gets the process calls end.
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
		go p.feedChunks() // ends with the chunk that comes after the end: nothing else can end it
	case len(in) > 0:
		p.pipes.Go(func() { p.feed(in) })
	}
	go p.supervise()
	return p, nil
}

// unstarted is the error for a process that is none. Nothing of it ran.
func unstarted(m *interact.Message, err error) error {
	e := &interact.Error{Code: interact.Unreachable, Title: m.Name + " could not be started", Err: err,
		Hint: "see that the command and its directory are there"}
	if scarce(err) {
		e.Code, e.Hint = interact.Overloaded, "the machine has no room for more processes: ulimit -a"
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
			_ = f.Close() // of nil, too
		}
		if err != nil {
			p.close()
		}
	}()
	if err != nil {
		return err
	}
	if p.cmd.Stdout, p.cmd.Stderr = out, errs; in != nil { // a nil *os.File is no nil reader
		p.cmd.Stdin = in
	}
	started := make(chan error)
	go p.own(started)
	return <-started
}

// own starts the process and waits for it. The signal at a parent's death comes when the thread dies that started the process
// (prctl(2), PR_SET_PDEATHSIG), so this goroutine keeps its thread as long as the process lives.
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

// supervise ends the process when the context ends, and ends what it leaves behind.
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

// lastly bounds what waits for a pipe whose other end has left the group.
func (p *process) lastly() {
	end := time.Now().Add(afterwards)
	_ = p.stdout.SetReadDeadline(end) // moved on by each Read
	_ = p.errs.SetReadDeadline(end)
	if p.stdin != nil {
		_ = p.stdin.SetWriteDeadline(end)
	}
}

// Read reads stdout. The error is [io.EOF] always: also when the call was ended, whose output is of no use to anybody.
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
		p.eof, err = true, io.EOF // a pipe has no other errors but that its time is over
		p.drain(&p.outRead)
	}
	if p.isCut() {
		return 0, io.EOF // discard may have read the output before it
	}
	return n, err
}

// isCut remembers that the call was ended before its output.
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

// feedChunks writes the request stream as it comes. If it breaks, so does the call.
func (p *process) feedChunks() {
	defer func() { _ = p.stdin.Close() }()
	for chunk, err := range p.m.Chunks {
		if err != nil {
			p.cancel(err)
			return
		}
		if _, err := p.stdin.Write(chunk); err != nil {
			return // it was closed by the process, or by us at the end
		}
	}
}

// close closes our ends.
func (p *process) close() {
	for _, f := range []*os.File{p.stdin, p.stdout, p.errs} {
		_ = f.Close() // of nil, too
	}
}
