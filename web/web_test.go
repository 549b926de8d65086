package web

import (
	"bytes"
	"compress/gzip"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Limits of the page in bytes, compressed.
const (
	maxFirstPage = 60_000  // what Overview needs
	aimed        = 150_000 // of all files without the licenses: the figure of docs/benchmarks.md
	maxPage      = 300_000 // of them, without exception
	maxVendor    = 60_000
)

// uiFiles returns the content of all files of the page by name.
func uiFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(embedded, "ui", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := fs.ReadFile(embedded, name)
		files[strings.TrimPrefix(name, "ui/")] = string(raw)
		return err
	})
	if err != nil || files["index.html"] == "" {
		t.Fatalf("%d files, %v", len(files), err)
	}
	return files
}

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
	for name, content := range uiFiles(t) {
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

// forbidden are texts in own files that would load from elsewhere, run inline code or make markup of text. The Content-Security-Policy stops them
// in a browser; this test finds them earlier.
var forbidden = map[string]*regexp.Regexp{
	"an absolute address":         regexp.MustCompile(`(?i)\bhttps?://[^\s"'<>]*`),
	"an address without a scheme": regexp.MustCompile(`(?i)(src|href|url\(|import|from)\s*[=(]?\s*["']//`),
	"a data or script address":    regexp.MustCompile("(?i)[\"'`(](data|javascript|blob):[^\"'`\\s]"),
	"a style attribute":           regexp.MustCompile(`(?i)\sstyle=["']|setAttribute\(\s*["']style`),
	"an event attribute":          regexp.MustCompile(`(?i)\son[a-z]+=["']|setAttribute\(\s*["']on`),
	"markup from text":            regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|parseFromString|dangerouslySet`),
	"code from text":              regexp.MustCompile(`\beval\(|new Function\(|setTimeout\(\s*["']|createPolicy`),
	"a style element":             regexp.MustCompile(`(?i)<style|createElement\(\s*["']style`),
	"a font or import of CSS":     regexp.MustCompile(`@import|@font-face`),
}

// namespaces are addresses that nothing loads.
var namespaces = []string{"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}

func TestOwnFilesLoadNothingElse(t *testing.T) {
	t.Parallel()
	script := regexp.MustCompile(`(?is)<script\b([^>]*)>(.*?)</script>`)
	for name, text := range uiFiles(t) {
		if strings.HasPrefix(name, "vendor/") {
			continue
		}
		for _, ns := range namespaces {
			text = strings.ReplaceAll(text, ns, "")
		}
		for what, pattern := range forbidden {
			if at := pattern.FindStringIndex(text); at != nil {
				t.Errorf("%s has %s: %.80q", name, what, text[at[0]:])
			}
		}
		for _, m := range script.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(m[1], `src="`) || strings.TrimSpace(m[2]) != "" {
				t.Errorf("%s has an inline script: %.80q", name, m[0])
			}
		}
		if path.Ext(name) == ".js" && strings.Contains(text, "<script") {
			t.Errorf("%s makes a script element", name)
		}
	}
	for what, planted := range map[string]string{
		"an absolute address": `import 'https://cdn.example/x.js'`, "an address without a scheme": `src="//cdn.example/x.js"`,
		"a data or script address": `src="data:text/javascript,1"`, "a style attribute": `<p style="color:red">`, "an event attribute": `<p onclick="x()">`,
		"markup from text": `p.innerHTML = x`, "code from text": `eval(x)`, "a style element": `<style>`, "a font or import of CSS": `@import "x"`,
	} {
		if !forbidden[what].MatchString(planted) {
			t.Errorf("%s is not found in %s", what, planted)
		}
	}
}

// Foreign code has its license beside it.
func TestLicenses(t *testing.T) {
	t.Parallel()
	files := uiFiles(t)
	vendored := 0
	for name, text := range files {
		if path.Dir(name) != "vendor" || path.Ext(name) != ".js" {
			continue
		}
		vendored++
		license := files[strings.TrimSuffix(name, ".js")+".LICENSE.txt"]
		if !strings.Contains(license, "Copyright") || !strings.Contains(license, "WITHOUT WARRANTY") && !strings.Contains(license, "WITHOUT\nWARRANTY") &&
			!strings.Contains(strings.ToUpper(license), "DISCLAIM") {
			t.Errorf("%s has no license", name)
		}
		if regexp.MustCompile(`\beval\(|new Function\(`).MatchString(text) {
			t.Errorf("%s makes code from text", name)
		}
	}
	if vendored == 0 {
		t.Error("there is no foreign code")
	}
}

// compressedSize returns the size of a text on the wire.
func compressedSize(t *testing.T, text string) int {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Len()
}

var (
	imported = regexp.MustCompile(`(?m)^\s*(?:import|export)\s(?:[^'"]*?\sfrom\s*)?["'](\.[^'"]+)["']`)
	linked   = regexp.MustCompile(`(?:src|href)="([^"#]+)"`)
)

// closure adds a file, and those that it loads at once, to the set.
func closure(t *testing.T, files map[string]string, name string, set map[string]bool) {
	t.Helper()
	text, ok := files[name]
	if !ok {
		t.Errorf("%s is missing", name)
	}
	if set[name] || !ok {
		return
	}
	set[name] = true
	pattern := imported
	if path.Ext(name) == ".html" {
		pattern = linked
	}
	for _, m := range pattern.FindAllStringSubmatch(text, -1) {
		closure(t, files, path.Join(path.Dir(name), m[1]), set)
	}
}

// The sizes of the page are bounded, and each file that it loads is there.
func TestSizes(t *testing.T) {
	t.Parallel()
	files := uiFiles(t)
	all, vendored, first := 0, 0, map[string]bool{}
	for name, text := range files {
		if strings.HasSuffix(name, ".LICENSE.txt") { // no page loads it
			continue
		}
		n := compressedSize(t, text)
		if all += n; strings.HasPrefix(name, "vendor/") {
			vendored += n
		}
		if path.Ext(name) == ".js" || path.Ext(name) == ".html" {
			closure(t, files, name, map[string]bool{}) // reports missing files
		}
	}
	closure(t, files, "index.html", first)
	if files["views/overview.js"] != "" {
		closure(t, files, "views/overview.js", first)
	}
	page := 0
	for name := range first {
		page += compressedSize(t, files[name])
	}
	t.Logf("first page %d bytes in %d files, all %d, foreign %d", page, len(first), all, vendored)
	if all > aimed {
		t.Logf("all files are larger than the aim of %d bytes", aimed)
	}
	if page > maxFirstPage || all > maxPage || vendored > maxVendor {
		t.Errorf("compressed: first page %d bytes (limit %d), all %d (%d), foreign %d (%d)", page, maxFirstPage, all, maxPage, vendored, maxVendor)
	}
}
