package tdd

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"sync"
)

// minCompressed is the size of a body, in bytes, from which on it is compressed.
const minCompressed = 1 << 10

// zippers are idle writers, of about 1 MB each.
var zippers = sync.Pool{New: func() any {
	z, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed) // a valid level
	return z
}}

// WriteCompressed is [WriteBytes] with gzip for a body of more than 1 kB, if the client accepts it and the header has no Content-Encoding. The
// header then has the length of the compressed body, also for HEAD.
func WriteCompressed(w http.ResponseWriter, r *http.Request, status int, contentType string, body []byte) {
	if h := w.Header(); len(body) >= minCompressed && h.Get("Content-Encoding") == "" {
		addVary(h)
		if acceptsGzip(r) {
			h.Set("Content-Encoding", "gzip")
			body = zipped(body)
		}
	}
	WriteBytes(w, status, contentType, body)
}

// addVary adds Accept-Encoding to Vary, unless it is there.
func addVary(h http.Header) {
	for _, v := range h.Values("Vary") {
		if strings.Contains(v, "Accept-Encoding") {
			return
		}
	}
	h.Add("Vary", "Accept-Encoding")
}

func zipped(body []byte) []byte {
	var b bytes.Buffer
	b.Grow(len(body) / 8)
	z := zippers.Get().(*gzip.Writer)
	defer zippers.Put(z)
	z.Reset(&b)
	_, _ = z.Write(body) // a buffer takes everything
	_ = z.Close()
	z.Reset(io.Discard)
	return b.Bytes()
}

// compressed returns a writer of the response body, with gzip if the client accepts it (tdd-http-representation-alternate-output). done
// ends the body.
func compressed(w http.ResponseWriter, r *http.Request) (body io.Writer, done func()) {
	if !acceptsGzip(r) {
		return w, func() {}
	}
	w.Header().Set("Content-Encoding", "gzip")
	if r.Method == http.MethodHead {
		return w, func() {}
	}
	z := zippers.Get().(*gzip.Writer)
	z.Reset(w)
	return z, func() {
		_ = z.Close() // the client may have disconnected
		z.Reset(io.Discard)
		zippers.Put(z)
	}
}

// acceptsGzip reports whether the client accepts gzip (RFC 9110 §12.5.3): by its name, or else by "*".
func acceptsGzip(r *http.Request) bool {
	any := false
	for _, field := range r.Header.Values("Accept-Encoding") {
		for part := range strings.SplitSeq(field, ",") {
			coding, weight, _ := strings.Cut(part, ";")
			switch coding = strings.TrimSpace(coding); {
			case strings.EqualFold(coding, "gzip"), strings.EqualFold(coding, "x-gzip"):
				return isWanted(weight)
			case coding == "*":
				any = isWanted(weight)
			}
		}
	}
	return any
}

// isWanted reports whether a weight is above zero: "q=" and 0 to 1 with at most three decimals (RFC 9110 §12.4.2). An empty one is 1, and an
// invalid one is not wanted.
func isWanted(weight string) bool {
	if weight = strings.TrimSpace(weight); weight == "" {
		return true
	}
	if len(weight) < 3 || weight[0] != 'q' && weight[0] != 'Q' || weight[1] != '=' {
		return false
	}
	whole, decimals, _ := strings.Cut(weight[2:], ".")
	if len(decimals) > 3 || strings.Trim(decimals, "0123456789") != "" {
		return false
	}
	rest := strings.Trim(decimals, "0")
	return whole == "1" && rest == "" || whole == "0" && rest != ""
}
