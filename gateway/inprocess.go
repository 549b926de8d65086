package gateway

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
)

// InProcess returns a client of g in this process, without a connection and with the rights of the unix socket. It works after New, with or
// without listeners; embedders and simulations use it.
func (g *Gateway) InProcess() *api.Client {
	return api.NewClient("the node in this process", "", inProcess{g})
}

// An inProcess transport sends requests to a gateway by function calls.
type inProcess struct{ g *Gateway }

// RoundTrip returns when the handler begins its response. The handler runs until it returns or the body is closed, which waits for it.
// Closing the gateway cancels its context.
func (t inProcess) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := req.Context().Err(); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	ctx, cancel := context.WithCancel(req.Context())
	r := req.Clone(did.WithPrincipal(ctx, did.Consumer(did.Process, "")))
	r.RequestURI, r.RemoteAddr, r.Host = req.URL.RequestURI(), "@", req.URL.Host
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
	switch {
	case r.Body == nil:
		r.Body = http.NoBody
	case r.Body != http.NoBody && r.ContentLength == 0:
		r.ContentLength = -1 // an unknown length is 0 in a client's request, and -1 in a server's
	}
	r.Body = &clientBody{r.Body, req.Context()}
	body, out := io.Pipe()
	w := &pipeWriter{header: http.Header{}, out: out, head: req.Method == http.MethodHead, started: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cancel()
		defer context.AfterFunc(t.g.requestCtx, cancel)() // as a drain ends requests over connections
		defer r.Body.Close()
		defer w.close()
		t.g.serve(w, r)
	}()
	<-w.started
	resp := &http.Response{Status: strconv.Itoa(w.status) + " " + http.StatusText(w.status), StatusCode: w.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: w.sent, ContentLength: -1,
		Body: &inProcessBody{PipeReader: body, cancel: cancel, done: done}, Request: req}
	if n, err := strconv.ParseInt(w.sent.Get("Content-Length"), 10, 64); err == nil {
		resp.ContentLength = n
	}
	return resp, nil
}

// isInProcess reports whether r is from a client of [Gateway.InProcess].
func isInProcess(r *http.Request) bool {
	p := did.PrincipalOf(r.Context())
	return p != nil && p.Via == did.Process
}

// A clientBody is the body of a request. It ends when its client leaves, as it does over a connection.
type clientBody struct {
	io.ReadCloser
	client context.Context
}

// Read implements [io.Reader].
func (b *clientBody) Read(p []byte) (int, error) {
	if err := b.client.Err(); err != nil {
		return 0, err
	}
	return b.ReadCloser.Read(p)
}

// An inProcessBody ends its handler when it is closed.
type inProcessBody struct {
	*io.PipeReader
	cancel context.CancelFunc
	done   chan struct{}
}

// Close implements [io.Closer].
func (b *inProcessBody) Close() error {
	b.cancel()
	err := b.PipeReader.Close()
	<-b.done
	return err
}

// A pipeWriter is an http.ResponseWriter into a pipe. Only the goroutine of the handler calls its methods; status and sent may be read after
// started is closed.
type pipeWriter struct {
	header  http.Header
	out     *io.PipeWriter
	head    bool // the response has no body
	status  int
	sent    http.Header // the header when the response began
	started chan struct{}
	once    sync.Once
}

func (w *pipeWriter) Header() http.Header { return w.header }

func (w *pipeWriter) WriteHeader(status int) {
	if status < 200 {
		return
	}
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.started)
	})
}

func (w *pipeWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.head {
		return len(b), nil
	}
	return w.out.Write(b)
}

// Flush implements [http.Flusher].
func (w *pipeWriter) Flush() { w.WriteHeader(http.StatusOK) }

// close ends the response after the handler has returned. An aborted handler is an error for the reader.
func (w *pipeWriter) close() {
	v := recover()
	w.WriteHeader(http.StatusOK)
	switch v {
	case nil:
		w.out.Close()
	case http.ErrAbortHandler:
		w.out.CloseWithError(io.ErrUnexpectedEOF)
	default:
		panic(v)
	}
}
