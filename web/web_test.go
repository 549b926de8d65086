package web

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// ask sends a request for a file, and returns the response; nil if there is no such file.
func ask(all *Files, method, name string, header ...string) *http.Response {
	r := httptest.NewRequest(method, "/", nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	if !all.Serve(w, r, name) {
		return nil
	}
	return w.Result()
}

// body returns the body of a response.
func body(t *testing.T, resp *http.Response) string {
	t.Helper()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// Each file is served with its type and a validator, and compressed on request.
func TestFiles(t *testing.T) {
	t.Parallel()
	all := New("")
	for name, raw := range uiFiles(t) {
		content := string(raw)
		want := types[path.Ext(name)]
		if want == "" {
			t.Errorf("%s has no media type", name)
		}
		plain := ask(all, "GET", name)
		if got := body(t, plain); plain.StatusCode != 200 || got != content || plain.Header.Get("Content-Type") != want || plain.Header.Get("Cache-Control") != "no-cache" ||
			plain.Header.Get("Content-Encoding") != "" || plain.ContentLength != int64(len(content)) {
			t.Errorf("%s: %d %v", name, plain.StatusCode, plain.Header)
		}
		etag := plain.Header.Get("Etag")
		if len(etag) != 26 {
			t.Errorf("%s has the validator %s", name, etag)
		}
		for _, known := range []string{etag, "W/" + etag, `"x", ` + etag, "*"} {
			again := ask(all, "GET", name, "If-None-Match", known)
			if again.StatusCode != http.StatusNotModified || body(t, again) != "" || again.Header.Get("Etag") != etag || again.Header.Get("Content-Security-Policy") != Policy {
				t.Errorf("%s for %s: %d %v", name, known, again.StatusCode, again.Header)
			}
		}
		if changed := ask(all, "GET", name, "If-None-Match", `"x"`); changed.StatusCode != 200 {
			t.Errorf("%s with another validator: %d", name, changed.StatusCode)
		}
		head := ask(all, "HEAD", name)
		if head.StatusCode != 200 || body(t, head) != "" || head.Header.Get("Content-Length") != plain.Header.Get("Content-Length") {
			t.Errorf("HEAD %s: %d %v", name, head.StatusCode, head.Header)
		}
		for range 2 { // it is made once
			packed := ask(all, "GET", name, "Accept-Encoding", "br, gzip;q=0.5")
			if packed.Header.Get("Content-Encoding") == "" {
				if len(content) >= 2*minGzip {
					t.Errorf("%s, of %d bytes, is not compressed", name, len(content))
				}
				continue
			}
			z, err := gzip.NewReader(packed.Body)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := io.ReadAll(z)
			if err != nil || string(raw) != content || packed.Header.Get("Etag") == etag || packed.Header.Get("Vary") != "Accept-Encoding" || packed.Header.Get("Content-Type") != want {
				t.Errorf("%s compressed: %v, %v", name, packed.Header, err)
			}
			if known := ask(all, "GET", name, "Accept-Encoding", "gzip", "If-None-Match", packed.Header.Get("Etag")); known.StatusCode != http.StatusNotModified {
				t.Errorf("%s compressed again: %d", name, known.StatusCode)
			}
		}
		if refused := ask(all, "GET", name, "Accept-Encoding", "gzip;q=0, identity"); refused.Header.Get("Content-Encoding") != "" {
			t.Errorf("%s is compressed for a client that refuses it", name)
		}
	}
	if index := ask(all, "GET", ""); !strings.HasPrefix(body(t, index), "<!doctype html>") {
		t.Error("the page is not index.html")
	}
	for _, name := range []string{"nothing.js", "../web.go", "/index.html", "vendor", "views/", "./index.html", "vendor/../index.html", ".", "\x00", "INDEX.HTML"} {
		if resp := ask(all, "GET", name); resp != nil {
			t.Errorf("%q gives %d", name, resp.StatusCode)
		}
	}
}

// The header fields that protect the page are exactly these.
func TestHeaders(t *testing.T) {
	t.Parallel()
	h := ask(New(""), "GET", "").Header
	for name, want := range map[string]string{
		"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " +
			"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
		"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cross-Origin-Opener-Policy": "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
	} {
		if got := h.Values(name); len(got) != 1 || got[0] != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	allowed := regexp.MustCompile(`^([a-z-]+=\(\), )+[a-z-]+=\(\)$`)
	if got := h.Get("Permissions-Policy"); !allowed.MatchString(got) || !strings.Contains(got, "geolocation=()") {
		t.Errorf("the permissions are %q", got)
	}
}

// A folder replaces the files of the program, and is read at each request.
func TestFilesOfAFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	all := New(dir)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "index.html"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if ask(all, "GET", "") != nil {
		t.Error("an empty folder has a page")
	}
	write("one")
	one := ask(all, "GET", "")
	write("two")
	two := ask(all, "GET", "", "If-None-Match", one.Header.Get("Etag"))
	if body(t, one) != "one" || body(t, two) != "two" || two.Header.Get("Content-Security-Policy") != Policy {
		t.Errorf("got %v, then %v", one.Header, two.Header)
	}
	if ask(all, "GET", "app.js") != nil || ask(all, "GET", "../x") != nil {
		t.Error("a file outside of the folder is served")
	}
}
