package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"iter"
	"mime"
	"net"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
)

const protobuf = "application/x-protobuf"

// A client posts spans to a collector over OTLP/HTTP (OTLP 1.x, "OTLP/HTTP"). It replaces the client of the library, which imports gRPC.
// Its headers are sent only to the collector.
type client struct {
	url        string
	header     http.Header // of each request
	gzip       bool
	transport  *http.Transport
	closing    context.Context    // ends when the tracer is closed: then an unreachable collector is not retried
	endRetries context.CancelFunc // ends closing
}

func newClient(url string, o Options, getenv func(string) string) (*client, error) {
	env := readEnv(getenv, o.Log)
	if len(o.Headers) > 0 {
		env.headers = o.Headers
	}
	c := &client{url: url, header: http.Header{}, gzip: env.gzip, transport: newTransport()}
	c.header.Set("User-Agent", "lmosd")
	for name, value := range env.headers {
		if !validHeader(name, value) {
			return nil, interact.Errorf(interact.ConfigInvalid, `for example {"Authorization": "Bearer …"}`,
				"a header for the collector is not valid in HTTP") // without the name, which may contain a secret by mistake
		}
		c.header.Set(name, value)
	}
	c.header.Set("Content-Type", protobuf)
	if c.gzip {
		c.header.Set("Content-Encoding", "gzip")
	}
	c.closing, c.endRetries = context.WithCancel(context.Background())
	return c, nil
}

// newTransport returns the transport to the collector.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment, // the collector may be remote
		DialContext:         (&net.Dialer{Timeout: postTimeout, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout: postTimeout,
		MaxIdleConnsPerHost: 2,
		IdleConnTimeout:     time.Minute,
		ForceAttemptHTTP2:   true,
	}
}

// A failure is the reason why a collector did not accept a batch.
type failure struct {
	reason     string
	permanent  bool          // the batch must not be retried
	noResponse bool          // the collector sent no response
	after      time.Duration // the requested pause
}

func (f *failure) Error() string { return f.reason }

// send posts a batch and retries while the collector is busy or unreachable, for at most [retryTimeout] and until ctx ends. The pauses
// grow, with jitter.
func (c *client) send(ctx context.Context, body []byte) (partial, error) {
	if c.gzip {
		body = compress(body)
	}
	start := time.Now()
	for pauses := (backoff.Backoff{First: firstPause, Max: maxPause, Jitter: 0.5}); ; {
		p, fail := c.post(ctx, body)
		switch {
		case fail == nil:
			return p, nil
		case ctx.Err() != nil:
			return partial{}, ctx.Err()
		case fail.permanent:
			return partial{}, fail
		}
		wait := max(fail.after, pauses.Next())
		if wait > retryTimeout-time.Since(start) || !c.sleep(ctx, wait, fail.noResponse) {
			return partial{}, fail
		}
	}
}

// sleep pauses for d, and reports whether to retry.
func (c *client) sleep(ctx context.Context, d time.Duration, noResponse bool) bool {
	var closing <-chan struct{}
	if noResponse { // a busy collector is retried until ctx ends
		closing = c.closing.Done()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-closing:
	}
	return false
}

func compress(body []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(body) // writing to a buffer never fails
	_ = z.Close()
	return b.Bytes()
}

// post sends one request. It uses the transport, because an http.Client follows redirects and would send the headers, which may be secret, to
// another server.
func (c *client) post(ctx context.Context, body []byte) (partial, *failure) {
	ctx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return partial{}, &failure{reason: err.Error(), permanent: true}
	}
	req.Header = c.header.Clone()
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return partial{}, noResponse(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer)) // without the body, the status is sufficient
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind != protobuf {
		return partial{}, checkResponse(resp, string(answer))
	}
	if resp.StatusCode/100 != 2 {
		_, reason := readPair(answer) // google.rpc.Status: int32 code = 1, string message = 2
		return partial{}, checkResponse(resp, reason)
	}
	return readPartial(answer), nil
}

// noResponse returns the failure of a request without a response. If the collector has received the spans, it receives them twice (OTLP 1.x,
// "Duplicate Data").
func noResponse(err error) *failure {
	f := &failure{reason: err.Error(), noResponse: true}
	if errors.Is(err, context.DeadlineExceeded) {
		f.reason = "no response within " + postTimeout.String()
	}
	return f
}

// checkResponse returns the failure in a response, or nil (OTLP 1.x, "Failures" and "Retryable Response Codes").
func checkResponse(resp *http.Response, reason string) *failure {
	if resp.StatusCode/100 == 2 {
		return nil
	}
	f := &failure{reason: resp.Status, permanent: true}
	if reason = interact.Readable(reason); reason != "" {
		f.reason += ": " + reason
	}
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		f.permanent, f.after = false, retryAfter(resp.Header.Get("Retry-After"), time.Now())
	}
	return f
}

// retryAfter reads seconds or a date (RFC 9110 §10.2.3); 0 for other values and past dates.
func retryAfter(s string, now time.Time) time.Duration {
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(s); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

// A partial is the result of an accepted batch: the number of rejected spans, or a warning if it is 0 (OTLP 1.x, "Partial Success").
type partial struct {
	rejected int64
	message  string
}

// readPartial reads an ExportTraceServiceResponse: partial_success = 1. Its package is not imported, because it imports gRPC.
func readPartial(b []byte) (p partial) {
	for f := range fields(b) {
		if f.number == 1 && f.kind == protowire.BytesType {
			p.rejected, p.message = readPair(f.bytes) // int64 rejected_spans = 1, string error_message = 2
		}
	}
	return p
}

// readPair reads a message with a number in field 1 and a text in field 2.
func readPair(b []byte) (n int64, text string) {
	for f := range fields(b) {
		switch {
		case f.number == 1 && f.kind == protowire.VarintType:
			n = int64(f.varint)
		case f.number == 2 && f.kind == protowire.BytesType:
			text = string(f.bytes)
		}
	}
	return n, text
}

// A field is a field of a Protobuf message.
type field struct {
	number protowire.Number
	kind   protowire.Type
	varint uint64
	bytes  []byte
}

// fields yields the fields of a message up to the first error.
func fields(b []byte) iter.Seq[field] {
	return func(yield func(field) bool) {
		for len(b) > 0 {
			var f field
			n := 0
			f.number, f.kind, n = protowire.ConsumeTag(b)
			if n < 0 {
				return
			}
			switch b = b[n:]; f.kind {
			case protowire.VarintType:
				f.varint, n = protowire.ConsumeVarint(b)
			case protowire.BytesType:
				f.bytes, n = protowire.ConsumeBytes(b)
			default:
				n = protowire.ConsumeFieldValue(f.number, f.kind, b)
			}
			if n < 0 || !yield(f) {
				return
			}
			b = b[n:]
		}
	}
}
