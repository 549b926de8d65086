package agent

import (
	"io"
	"iter"

	"github.com/lmosd/lmosd/interact"
)

// Chunks is the input of an action that takes it while it comes: sound, a file. Use it as the In of [Action] or [Stream]. An
// input that came whole is one chunk. It is read once, by one of its methods, while the function runs; a function that does not
// read it on holds its caller back, and nobody else. It must not be kept.
type Chunks struct {
	// ContentType is what the caller says of it, "audio/wav".
	ContentType string
	all         iter.Seq2[[]byte, error]
	pull        *pull
}

// All returns the chunks: what the caller sent at once, cut at 64 KiB. A chunk is the loop's until it asks for the next. The
// sequence ends with an error if the caller broke off or left; to leave the loop tells the caller's side to send no more.
func (c Chunks) All() iter.Seq2[[]byte, error] {
	if c.all == nil {
		return func(func([]byte, error) bool) {}
	}
	return c.all
}

// Reader returns all chunks as one text of bytes. Each call returns the same.
func (c Chunks) Reader() io.Reader {
	if c.pull == nil {
		return io.MultiReader() // which is at its end
	}
	return c.pull
}

// Data is an output, or a part of one, that is not JSON: sound, an image. Use it as the Out of [Action] or [Stream].
type Data struct {
	// ContentType says what Bytes are; empty means "application/octet-stream".
	ContentType string
	Bytes       []byte
}

// octets is the media type of bytes of which nothing is known.
const octets = "application/octet-stream"

// chunksOf returns the input of m. The caller closes its pull.
func chunksOf(m *interact.Message) Chunks {
	c := Chunks{ContentType: m.Media(), all: m.Chunks}
	if c.all == nil {
		c.all = func(yield func([]byte, error) bool) {
			if len(m.Data) > 0 {
				yield(m.Data, nil)
			}
		}
	}
	if c.pull = (&pull{all: c.all}); m.Chunks != nil && m.ContentType == "" {
		c.ContentType = octets
	}
	return c
}

// A pull reads chunks when they are asked for.
type pull struct {
	all  iter.Seq2[[]byte, error]
	next func() ([]byte, error, bool)
	stop func()
	rest []byte
	err  error
}

// Read implements [io.Reader].
func (p *pull) Read(b []byte) (int, error) {
	if p.next == nil && p.err == nil {
		p.next, p.stop = iter.Pull2(p.all)
	}
	for len(p.rest) == 0 && p.err == nil {
		chunk, err, ok := p.next()
		if p.rest, p.err = chunk, err; !ok {
			p.err = io.EOF
		}
	}
	n := copy(b, p.rest)
	if p.rest = p.rest[n:]; n > 0 || len(b) == 0 {
		return n, nil
	}
	return 0, p.err
}

// close ends what was begun. Read returns an error from then on.
func (p *pull) close() {
	if p == nil {
		return
	}
	if p.stop != nil {
		p.stop()
	}
	p.rest, p.err = nil, interact.Errorf(interact.Cancelled, "read it before the function returns", "the call is over")
}

// Upload is an input for [Call] that is sent while Reader is read, as an action takes it whose In is [Chunks].
type Upload struct {
	// ContentType says what it is, of neither JSON nor CBOR; empty means "application/octet-stream".
	ContentType string
	io.Reader
}
