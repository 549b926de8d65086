package command

import (
	"errors"
	"fmt"
	"io"
	"os/exec"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/httpbody"
)

// A consumer receives a reply or the error, and reports whether it stays.
type consumer = func(*interact.Message, error) bool

// errLeft means that the consumer has left the loop.
var errLeft = errors.New("the caller left")

// whole yields the output in one part.
func (p *process) whole(yield consumer) error {
	out, err := httpbody.ReadAll(p, -1, p.agent.o.MaxOutput)
	if err := p.end(err); err != nil {
		return err
	}
	media, data := p.agent.output(p.m, out)
	yield(p.status(interact.StatusCompleted, media, data), nil)
	return nil
}

// stream yields the output as it arrives.
func (p *process) stream(media string, yield consumer) error {
	buf := make([]byte, maxPiece)
	return p.parts(yield, func() (string, []byte, error) {
		n, err := p.Read(buf)
		return media, append([]byte(nil), buf[:n]...), err
	})
}

// pieces yields the parts between delimiters.
func (p *process) pieces(yield consumer) error {
	s := splitter{from: p, delim: []byte(p.agent.o.Chunk), limit: p.agent.o.MaxOutput}
	return p.parts(yield, func() (string, []byte, error) {
		part, end, err := s.next()
		if err != nil {
			return "", nil, err
		}
		media, data := p.agent.part(p.m, part, end)
		return media, data, nil
	})
}

// parts yields the parts that next returns, until its error, and then the end. next may return data with the error.
func (p *process) parts(yield consumer, next func() (media string, data []byte, err error)) error {
	for {
		media, data, err := next()
		if len(data) > 0 && !yield(p.status(interact.StatusRunning, media, data), nil) {
			_ = p.end(errLeft)
			return nil
		}
		if err == nil {
			continue
		}
		if err := p.end(err); err != nil {
			return err
		}
		yield(p.status(interact.StatusCompleted, "", nil), nil)
		return nil
	}
}

func (p *process) status(s interact.Status, media string, data []byte) *interact.Message {
	return p.m.ReplyStatus(s, media, data)
}

// end waits until the process has ended, and returns its error. An err that is not the end of the output ends the process.
func (p *process) end(err error) error {
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if err != nil {
		p.cancel(err)
	}
	<-p.gone
	p.close()
	switch {
	case errors.Is(err, httpbody.ErrTooLarge):
		return p.tooLarge()
	case err != nil:
		return err
	case p.stopped, p.cut:
		return ended(p.ctx, p.m, true)
	case p.exit != nil:
		return p.failed()
	}
	return nil
}

// failed returns the error of a failed process, with its stderr if any.
func (p *process) failed() error {
	e := &interact.Error{Code: interact.AgentFailed, Remote: true, Title: p.m.Name + " failed: " + p.exit.Error(),
		Hint: "run the command in a shell to see its output"}
	if x := (*exec.ExitError)(nil); !errors.As(p.exit, &x) {
		e.Remote, e.Title, e.Err = false, p.m.Name+" failed", p.exit
	}
	if words := p.stderr.String(); words != "" {
		e.Title += ": " + words
	}
	return e
}

func (p *process) tooLarge() error {
	what, limit := "output", p.agent.o.MaxOutput
	if p.agent.o.Chunk != "" {
		what = "part of the output"
	}
	return &interact.Error{Code: interact.TooLarge, Started: true, Hint: "raise the limit, or send the output in parts",
		Next:  interact.Next(interact.StepExpose, "TARGET", "delimiter", `\n`),
		Title: fmt.Sprintf("the %s of %s has more than %d bytes, and the command was ended", what, p.m.Name, limit)}
}
