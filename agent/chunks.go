package agent

import (
	"io"
	"iter"

	"github.com/lmosd/lmosd/interact"
)

// Chunks is an input that the action reads as it arrives, such as audio or a file. Use it as the In of [Action] or [Stream]. It is read
// once, by one of its methods, while the function runs; a function that does not read it blocks only its caller. It must not be kept.
type Chunks struct {
	// ContentType is the media type that the caller sent, "audio/wav".
	ContentType string
	all         iter.Seq2[[]byte, error]
	reader      *chunkReader
}

// All returns the chunks as the caller sent them, at most 64 KiB each. A chunk is valid until the next one. The sequence ends with an error
// if the caller disconnects; leaving the loop stops the caller's side.
func (c Chunks) All() iter.Seq2[[]byte, error] {
	if c.all == nil {
		return func(func([]byte, error) bool) {}
	}
	return c.all
}

// Reader returns the concatenated chunks. Each call returns the same Reader.
func (c Chunks) Reader() io.Reader {
	if c.reader == nil {
		return io.MultiReader() // at its end
	}
	return c.reader
}

// Data is an output, or a part of one, that is not JSON, such as audio or an image. Use it as the Out of [Action] or [Stream].
type Data struct {
	// ContentType is the media type of Bytes; empty means "application/octet-stream".
	ContentType string
	Bytes       []byte
}

// octetStream is the default media type of bytes.
const octetStream = "application/octet-stream"

// chunksOf returns the input of m. The caller closes its reader.
func chunksOf(m *interact.Message) Chunks {
	c := Chunks{ContentType: m.Media(), all: m.Chunks}
	if c.all == nil {
		c.all = func(yield func([]byte, error) bool) {
			if len(m.Data) > 0 {
				yield(m.Data, nil)
			}
		}
	}
	if c.reader = (&chunkReader{all: c.all}); m.Chunks != nil && m.ContentType == "" {
		c.ContentType = octetStream
	}
	return c
}

// A chunkReader reads chunks on demand.
type chunkReader struct {
	all  iter.Seq2[[]byte, error]
	next func() ([]byte, error, bool)
	stop func()
	rest []byte
	err  error
}

// Read implements [io.Reader].
func (r *chunkReader) Read(b []byte) (int, error) {
	if r.next == nil && r.err == nil {
		r.next, r.stop = iter.Pull2(r.all)
	}
	for len(r.rest) == 0 && r.err == nil {
		chunk, err, ok := r.next()
		if r.rest, r.err = chunk, err; !ok {
			r.err = io.EOF
		}
	}
	n := copy(b, r.rest)
	if r.rest = r.rest[n:]; n > 0 || len(b) == 0 {
		return n, nil
	}
	return 0, r.err
}

// close ends the iteration. Read then returns an error.
func (r *chunkReader) close() {
	if r == nil {
		return
	}
	if r.stop != nil {
		r.stop()
	}
	r.rest, r.err = nil, interact.Errorf(interact.Cancelled, "read it before the function returns", "the call has ended")
}

// Upload is an input for [Call] that is sent while Reader is read, for an action whose In is [Chunks].
type Upload struct {
	// ContentType is the media type, neither JSON nor CBOR; empty means "application/octet-stream".
	ContentType string
	io.Reader
}
