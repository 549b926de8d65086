// Package web has the files of the console, the page of a node, and serves them.
//
// The files in ui are served as they are written: nothing is built. Foreign code is in ui/vendor, with its licenses.
package web

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
)

//go:embed ui
var embedded embed.FS

// Policy is the Content-Security-Policy of every file (CSP Level 3, Trusted Types): the page loads from its own origin
// only, runs no inline code, and turns no text into markup.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Permissions is the Permissions-Policy of every file: the page uses no feature that needs a permission, except the clipboard, to which it
// only writes.
const Permissions = "accelerometer=(), autoplay=(), camera=(), display-capture=(), encrypted-media=(), fullscreen=(), " +
	"gamepad=(), geolocation=(), gyroscope=(), hid=(), idle-detection=(), local-fonts=(), magnetometer=(), microphone=(), midi=(), " +
	"payment=(), picture-in-picture=(), publickey-credentials-get=(), screen-wake-lock=(), serial=(), usb=(), " +
	"window-management=(), xr-spatial-tracking=()"

// setHeaders sets the header fields that protect the page in a browser.
func setHeaders(h http.Header) {
	h.Set("Content-Security-Policy", Policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", Permissions)
}

// types are the media types of the files by suffix. Those of the operating system differ between machines.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".json": "application/json", ".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon", ".woff2": "font/woff2",
	".txt": "text/plain; charset=utf-8", ".md": "text/plain; charset=utf-8",
}

// minGzip is the size in bytes from which compression saves a packet.
const minGzip = 1 << 10

// A file is a file of the page.
type file struct {
	content []byte
	kind    string // media type
	etag    string // a strong validator (RFC 9110 §8.8.3)

	once sync.Once
	gz   []byte // after once; nil: compression does not help
}

func newFile(name string, content []byte) *file {
	sum := sha256.Sum256(content)
	kind := types[path.Ext(name)]
	if kind == "" {
		kind = types[".txt"] // LICENSE
	}
	return &file{content: content, kind: kind, etag: hex.EncodeToString(sum[:12])}
}

// compressed returns the content in gzip, which is made once; nil if that is not smaller.
func (f *file) compressed() []byte {
	f.once.Do(func() {
		if len(f.content) < minGzip {
			return
		}
		var b bytes.Buffer
		w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // a valid level
		_, _ = w.Write(f.content)
		_ = w.Close() // a buffer takes all
		if b.Len() < len(f.content) {
			f.gz = b.Bytes()
		}
	})
	return f.gz
}

// Files are the files of the page. They are safe for concurrent use.
type Files struct {
	find func(name string) *file // nil for a missing one
}

// New returns the embedded files. With dir it returns those of that folder, which are read at each request, for work on the page.
func New(dir string) *Files {
	if dir != "" {
		return &Files{fileOf(os.DirFS(dir))}
	}
	return &Files{embeddedFile()}
}

// Serve responds to a GET or HEAD for the file name, relative to the page: "app.js", and "" for index.html. It returns false, without a response, if
// there is no such file.
func (all *Files) Serve(w http.ResponseWriter, r *http.Request, name string) bool {
	f := all.find(cmp.Or(name, "index.html"))
	if f == nil {
		return false
	}
	setHeaders(w.Header())
	f.serve(w, r)
	return true
}

// embeddedFile returns the function that finds an embedded file by its name; nil for a missing one.
func embeddedFile() func(name string) *file {
	ui, err := fs.Sub(embedded, "ui")
	if err != nil {
		panic(err) // the name is valid
	}
	find := fileOf(ui)
	var mu sync.Mutex
	files := map[string]*file{} // owned by mu; at most the files that there are
	return func(name string) *file {
		mu.Lock()
		defer mu.Unlock()
		if f := files[name]; f != nil {
			return f
		}
		f := find(name)
		if f != nil {
			files[name] = f
		}
		return f
	}
}

// fileOf returns the function that reads a file of fsys by its name; nil for a missing one.
func fileOf(fsys fs.FS) func(name string) *file {
	return func(name string) *file {
		content, err := fs.ReadFile(fsys, name) // rejects "..", and paths that are not clean
		if err != nil {
			return nil
		}
		return newFile(name, content)
	}
}

// serve writes f, or 304 if the client has it.
func (f *file) serve(w http.ResponseWriter, r *http.Request) {
	h, content, etag := w.Header(), f.content, `"`+f.etag+`"`
	h.Set("Cache-Control", "no-cache")
	if gz := f.compressed(); gz != nil {
		h.Add("Vary", "Accept-Encoding")
		if acceptsGzip(r.Header.Get("Accept-Encoding")) {
			content, etag = gz, `"`+f.etag+`-gzip"` // other bytes: another strong validator
			h.Set("Content-Encoding", "gzip")
		}
	}
	h.Set("Etag", etag)
	if isKnown(r.Header.Get("If-None-Match"), etag) {
		h.Del("Content-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", f.kind)
	h.Set("Content-Length", strconv.Itoa(len(content)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(content) // an error is a client that left
	}
}

// acceptsGzip reports whether the value of Accept-Encoding permits gzip (RFC 9110 §12.5.3).
func acceptsGzip(accept string) bool {
	for coding := range strings.SplitSeq(accept, ",") {
		name, params, _ := strings.Cut(coding, ";")
		if name = strings.TrimSpace(name); !strings.EqualFold(name, "gzip") && name != "*" {
			continue
		}
		_, weight, ok := strings.Cut(strings.ReplaceAll(params, " ", ""), "q=")
		q, err := strconv.ParseFloat(weight, 64)
		return !ok || err == nil && q > 0
	}
	return false
}

// isKnown reports whether a list of If-None-Match has etag (RFC 9110 §13.1.2, weak comparison).
func isKnown(list, etag string) bool {
	for known := range strings.SplitSeq(list, ",") {
		if known = strings.TrimPrefix(strings.TrimSpace(known), "W/"); known == etag || known == "*" {
			return true
		}
	}
	return false
}
