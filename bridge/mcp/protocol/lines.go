package protocol

import (
	"bufio"
	"context"
	"errors"
	"io"
	"regexp"
	"sync"
)

// A Conn carries messages both ways. Read is called by one goroutine at a time; Write and Close by any. Close ends Reads and
// Writes that wait.
type Conn interface {
	// Read returns the next message. What is no message is an [*Error], after which reading goes on, with a message that has the id,
	// if there is one, as of [Parse]; any other error is the end: io.EOF if the other end closed.
	Read(ctx context.Context) (*Message, error)
	// Write sends m. If ctx ends first, m may be sent all the same.
	Write(ctx context.Context, m *Message) error
	Close() error
}

// maxLine bounds a line: a message, with what relays add to it.
const maxLine = MaxMessage + 64<<10

// Lines carries messages over a stream of bytes, one a line (MCP, "stdio": it is what is meant for other streams, too). Closing the
// stream must end its Reads and Writes.
func Lines(stream io.ReadWriteCloser) Conn {
	l := &lines{stream: stream, in: bufio.NewReaderSize(stream, 32<<10), writes: make(chan writing), closed: make(chan struct{})}
	l.close = sync.OnceValue(func() error {
		close(l.closed)
		err := stream.Close()
		l.begin.Do(func() {}) // nobody writes from now on
		l.writer.Wait()
		return err
	})
	return l
}

type lines struct {
	stream io.ReadWriteCloser
	in     *bufio.Reader
	begin  sync.Once      // of the first write
	writer sync.WaitGroup // the goroutine that writes, once there is something to be written
	writes chan writing
	closed chan struct{}
	close  func() error
}

// A writing is a line that is written, and where it is told how that went.
type writing struct {
	line []byte
	done chan error
}

func (l *lines) Read(context.Context) (*Message, error) {
	for {
		line, id, err := readLine(l.in)
		switch {
		case err != nil && id != "":
			return &Message{id: id}, err
		case err != nil:
			return nil, err
		case len(line) > 0:
			return parse(line)
		}
	}
}

// readLine returns a line of its own without its end. The last one may lack it. Of one that is too long the id is returned, if its
// message has one that can be seen: somebody waits for it.
func readLine(in *bufio.Reader) (line []byte, id ID, err error) {
	var head, tail []byte
	for {
		part, err := in.ReadSlice('\n')
		switch {
		case head != nil:
			tail = append(tail, part...)
			tail = append(tail[:0], tail[max(0, len(tail)-seen):]...)
		case len(line)+len(part) > maxLine:
			line = append(line, part...)
			head, tail, line = append([]byte(nil), line[:seen]...), append([]byte(nil), line[len(line)-seen:]...), nil
		default:
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case head != nil && err == nil:
			return nil, idOf(head, tail), tooLong()
		case err == io.EOF && len(line) > 0:
			return line, "", nil
		case err != nil:
			return nil, "", err
		}
		line = line[:len(line)-1]
		if n := len(line); n > 0 && line[n-1] == '\r' {
			line = line[:n-1]
		}
		return line, "", nil
	}
}

// seen is how much of the beginning and of the end of a line that is too long is looked at.
const seen = 512

// The id stands at one end of what everybody writes. An object that ends the line is the message itself, and so is one that begins
// it, so that these ids are not of something inside.
var (
	idFirst = regexp.MustCompile(`^\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(-?[0-9]+|"(?:[^"\\]|\\.)*")\s*,`)
	idLast  = regexp.MustCompile(`,\s*"id"\s*:\s*(-?[0-9]+|"(?:[^"\\]|\\.)*")\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$`)
)

func idOf(head, tail []byte) ID {
	for _, found := range [][][]byte{idFirst.FindSubmatch(head), idLast.FindSubmatch(tail)} {
		if found == nil {
			continue
		}
		if id := IDOf(found[1]); id != "" {
			return id
		}
	}
	return ""
}

func (l *lines) Write(ctx context.Context, m *Message) error {
	l.begin.Do(func() { l.writer.Go(l.write) })
	line := append(make([]byte, 0, len(m.text)+1), m.text...)
	w := writing{append(line, '\n'), make(chan error, 1)}
	select {
	case l.writes <- w:
	case <-l.closed:
		return io.ErrClosedPipe
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A written line is one of those that are written at once.
type written struct {
	done chan error
	end  int // where it ends among them
}

// maxBatch bounds the lines that are written at once. The last of them may be longer.
const maxBatch = 16 << 10

// write writes lines, those at once that wait while others are written. It does so in a goroutine of its own: whoever has a reader
// that stopped reads nothing, and callers need not wait for that.
func (l *lines) write() {
	var all []written
	for {
		var batch []byte
		select {
		case w := <-l.writes:
			batch = w.line
			all = append(all[:0], written{w.done, len(batch)})
		case <-l.closed:
			return
		}
		for more := true; more && len(batch) < maxBatch; {
			select {
			case w := <-l.writes:
				batch = append(batch, w.line...)
				all = append(all, written{w.done, len(batch)})
			default:
				more = false
			}
		}
		n, err := l.stream.Write(batch)
		for _, w := range all {
			if n < len(batch) && w.end <= n {
				w.done <- nil // who reads may have it: it must not be sent again
			} else {
				w.done <- err
			}
		}
	}
}

func (l *lines) Close() error { return l.close() }
