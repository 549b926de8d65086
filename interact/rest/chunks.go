package rest

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
)

// maxPart is the size of the parts of a response stream, in bytes.
const maxPart = 64 << 10

// streamFrom is the length from which a response is streamed, in bytes.
const streamFrom = 1 << 20

// A streamError is the error of a request stream.
type streamError struct{ error }

// feed starts a goroutine of the client, which sends the data and the chunks of the message as the body of the request. It ends with the
// next chunk after the end of the request.
func (c *Client) feed(r *request) error {
	if !c.enter() {
		return interact.ShutdownError("try again in a moment")
	}
	body, in := io.Pipe()
	r.feed = body
	go func() {
		defer c.work.Done()
		_ = in.CloseWithError(r.pour(in))
	}()
	return nil
}

// pour writes the stream to w. If the source fails, the interaction ends: the agent must not accept an incomplete stream as complete.
func (r *request) pour(w io.Writer) error {
	if !r.zipped() {
		return r.pourTo(w, func() error { return nil })
	}
	z := gzip.NewWriter(w)
	if err := r.pourTo(z, z.Flush); err != nil {
		return err
	}
	return z.Close()
}

// pourTo writes the stream to w and flushes after each chunk, so that the agent receives it immediately.
func (r *request) pourTo(w io.Writer, flush func() error) error {
	if err := writeChunk(w, r.Body, flush); err != nil {
		return err
	}
	for chunk, err := range r.Message.Chunks {
		if err != nil {
			r.abort(streamError{err})
			return err
		}
		if err := writeChunk(w, chunk, flush); err != nil {
			return err
		}
	}
	return nil
}

func writeChunk(w io.Writer, chunk []byte, flush func() error) error {
	if len(chunk) == 0 {
		return nil // an empty write to a pipe waits for a reader
	}
	if _, err := w.Write(chunk); err != nil {
		return err
	}
	return flush()
}

// attach makes the stream the body of req, of unknown length (RFC 9112 §7.1).
func (r *request) attach(req *http.Request) {
	req.Body, req.GetBody, req.ContentLength = r.feed, nil, -1
	if r.zipped() {
		req.Header.Set("Accept-Encoding", "gzip")
		req.Header.Set("Content-Encoding", "gzip")
	}
}

// streams returns the context of an interaction, which ends if the request stream fails. The caller releases the request.
func (r *request) streams(ctx context.Context) context.Context {
	if r.Message.Chunks != nil {
		ctx, r.abort = context.WithCancelCause(ctx)
	}
	return ctx
}

// release ends the request.
func (r *request) release() {
	if r.feed != nil {
		_ = r.feed.CloseWithError(form.ErrLeft)
	}
	if r.abort != nil {
		r.abort(nil)
	}
}

// passes reports whether a response is passed on in parts: its length is unknown or above streamFrom, and its type is neither JSON nor
// CBOR. Text is not passed on if the form declares JSON: many servers send JSON as text.
func (r *request) passes(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusCreated, http.StatusAccepted, http.StatusNoContent:
		return false
	}
	contentType, promised := resp.Header.Get("Content-Type"), interact.MediaType(r.Form.ResponseType)
	media := interact.MediaType(contentType)
	if contentType == "" {
		media = promised
	}
	unlabelled := media == "text/plain" || media == "text/html"
	return (resp.ContentLength < 0 || resp.ContentLength > streamFrom) && r.expected(resp.StatusCode) &&
		!form.IsStructured(media) && !(form.IsStructured(promised) && unlabelled && !listed(r.Form.AdditionalTypes, media))
}

// pass yields the parts of a response as they arrive, and then the end. It reads no further than the consumer.
func (c *Client) pass(ctx context.Context, r *request, resp *http.Response, yield func(*interact.Message) bool) error {
	src, err := c.source(ctx, r, resp)
	if err != nil {
		return err
	}
	media := strings.TrimSpace(resp.Header.Get("Content-Type"))
	if media == "" || !form.HeaderOK("Content-Type", media) {
		media = interact.MediaType(r.Form.ResponseType)
	}
	buf, total := make([]byte, maxPart), int64(0)
	for {
		n, err := src.Read(buf)
		total += int64(n)
		if n > 0 {
			if !yield(r.Message.ReplyStatus(interact.StatusRunning, media, bytes.Clone(buf[:n]))) {
				return form.ErrLeft
			}
		}
		switch {
		case err == io.EOF:
			yield(r.Message.ReplyStatus(interact.StatusCompleted, "", nil))
			return nil
		case err != nil && ctx.Err() != nil:
			return r.lost(ctx, err)
		case err != nil:
			return r.incomplete(total)
		}
	}
}
