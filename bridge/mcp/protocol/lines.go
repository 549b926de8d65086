package protocol

import (
	"bufio"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/lmosd/lmosd/internal/lazyregexp"
)

// A Conn carries messages in both directions. At most one goroutine calls Read at a time; Write and Close are safe for concurrent use.
// Close unblocks Read and Write.
type Conn interface {
	// Read returns the next message. An invalid message is an [*Error], with a message that has only the id, if one was found (see
	// [Parse]); the connection remains usable. Any other error is final: io.EOF if the peer closed the connection.
	Read(ctx context.Context) (*Message, error)
	// Write sends m. If ctx ends during Write, m may still be sent.
	Write(ctx context.Context, m *Message) error
	Close() error
}

// Receive returns the next message of a channel: the Read of a connection that ends with life.
func Receive(ctx context.Context, in <-chan *Message, life context.Context) (*Message, error) {
	select {
	case m := <-in:
		return m, nil
	case <-life.Done():
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// maxLine bounds a line: a message and the members that relays add to it.
const maxLine = MaxMessage + 64<<10

// Lines returns a connection that carries one message per line over a byte stream (MCP, "stdio", which the specification allows on other
// byte streams too). Closing the stream must unblock its Read and Write.
func Lines(stream io.ReadWriteCloser) Conn {
	l := &lines{stream: stream, in: bufio.NewReaderSize(stream, 32<<10), writes: make(chan pendingWrite), closed: make(chan struct{})}
	l.close = sync.OnceValue(func() error {
		close(l.closed)
		err := stream.Close()
		l.startWriter.Do(func() {}) // no writer starts after this
		l.writer.Wait()
		return err
	})
	return l
}

type lines struct {
	stream      io.ReadWriteCloser
	in          *bufio.Reader
	startWriter sync.Once      // starts the writer at the first Write
	writer      sync.WaitGroup // the writer goroutine
	writes      chan pendingWrite
	closed      chan struct{}
	close       func() error
}

// A pendingWrite is a line to be written, and the channel for the result.
type pendingWrite struct {
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

// readLine returns the next line without its terminator, in memory of its own. The last line may lack the terminator. For a line that is
// too long it returns the id of the message, if one was found, so that the caller can respond.
func readLine(in *bufio.Reader) (line []byte, id ID, err error) {
	var head, tail []byte
	for {
		part, err := in.ReadSlice('\n')
		switch {
		case head != nil:
			tail = append(tail, part...)
			tail = append(tail[:0], tail[max(0, len(tail)-scanned):]...)
		case len(line)+len(part) > maxLine:
			line = append(line, part...)
			head, tail, line = append([]byte(nil), line[:scanned]...), append([]byte(nil), line[len(line)-scanned:]...), nil
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

// scanned is the number of bytes at the start and at the end of an overlong line that are searched for an id.
const scanned = 512

// Common encoders write the id first or last. An object at the start or the end of the line is the message itself, so these patterns do
// not match the id of a nested object.
var (
	idFirst = lazyregexp.New(`^\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(-?[0-9]+|"(?:[^"\\]|\\.)*")\s*,`)
	idLast  = lazyregexp.New(`,\s*"id"\s*:\s*(-?[0-9]+|"(?:[^"\\]|\\.)*")\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$`)
)

func idOf(head, tail []byte) ID {
	for _, found := range [][][]byte{idFirst().FindSubmatch(head), idLast().FindSubmatch(tail)} {
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
	l.startWriter.Do(func() { l.writer.Go(l.write) })
	line := append(make([]byte, 0, len(m.text)+1), m.text...)
	w := pendingWrite{append(line, '\n'), make(chan error, 1)}
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

// A batchEntry is one line of a batch.
type batchEntry struct {
	done chan error
	end  int // offset of its end in the batch
}

// maxBatch bounds the bytes that are written at once. The last line may exceed it.
const maxBatch = 16 << 10

// write writes the queued lines in batches. It runs in its own goroutine, so that the context of a caller limits its wait for a peer that
// does not read.
func (l *lines) write() {
	var all []batchEntry
	for {
		var batch []byte
		select {
		case w := <-l.writes:
			batch = w.line
			all = append(all[:0], batchEntry{w.done, len(batch)})
		case <-l.closed:
			return
		}
		for more := true; more && len(batch) < maxBatch; {
			select {
			case w := <-l.writes:
				batch = append(batch, w.line...)
				all = append(all, batchEntry{w.done, len(batch)})
			default:
				more = false
			}
		}
		n, err := l.stream.Write(batch)
		for _, w := range all {
			if n < len(batch) && w.end <= n {
				w.done <- nil // written completely: it must not be sent again
			} else {
				w.done <- err
			}
		}
	}
}

func (l *lines) Close() error { return l.close() }
