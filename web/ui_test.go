package web

import (
	"bytes"
	"compress/gzip"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"
)

// uiFiles returns the files of the page by their names below ui.
func uiFiles(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := fs.WalkDir(embedded, "ui", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files[strings.TrimPrefix(name, "ui/")], err = fs.ReadFile(embedded, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// forbidden are parts of own files that the policy of the page blocks, or that would turn text into markup.
var forbidden = regexp.MustCompile(`(?i)\bstyle="|\sstyle=\$|\son[a-z]+="|<script(?: |>)|https?://\w|\bdata:[a-z]+/|innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySet|\beval\(|new Function|\bsetAttribute\('on`)

// allowed are matches of forbidden that are none: a namespace, the one script of the page, and addresses in command lines that a person copies.
var allowed = []string{`<script type="module" src="app.js"></script>`, `xmlns="http://www.w3.org/2000/svg"`}

// TestOwnFiles checks that the page has no inline code and no style attribute, refers to nothing outside its origin, and makes no markup of text.
func TestOwnFiles(t *testing.T) {
	t.Parallel()
	for name, content := range uiFiles(t) {
		if strings.HasPrefix(name, "vendor/") {
			continue
		}
		text := string(content)
		for _, a := range allowed {
			text = strings.ReplaceAll(text, a, "")
		}
		for i, line := range strings.Split(text, "\n") {
			if m := forbidden.FindString(line); m != "" {
				t.Errorf("%s:%d has %q", name, i+1, m)
			}
		}
	}
}

// TestForbidden is the control of TestOwnFiles.
func TestForbidden(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{`<b style="x">`, `<b style=${x}>`, `<b onclick="x">`, `<script>x</script>`, `fetch('https://cdn.example/x')`,
		`src="data:image/png;base64,x"`, `e.innerHTML = x`, `eval(x)`} {
		if !forbidden.MatchString(bad) {
			t.Errorf("%s is not found", bad)
		}
	}
}

var later = regexp.MustCompile(`import\('(\.[^']+)'\)`)

var imports = regexp.MustCompile(`(?m)^(?:import|export)\b[^;]*?from '(\.[^']+)';|^import '(\.[^']+)';`)

// closure adds the module and all modules that it imports, without those that it loads later.
func closure(t *testing.T, files map[string][]byte, name string, into map[string]bool) {
	t.Helper()
	if into[name] {
		return
	}
	content, ok := files[name]
	if !ok {
		t.Errorf("%s is imported and does not exist", name)
		return
	}
	into[name] = true
	for _, m := range imports.FindAllSubmatch(content, -1) {
		closure(t, files, path.Join(path.Dir(name), string(m[1])+string(m[2])), into)
	}
}

// Limits of the size of the page in gzip, in bytes.
const (
	maxFirst  = 60_000  // what the first view loads, without its charts
	maxAll    = 160_000 // every file that the page can load
	maxVendor = 20_000  // code of others
)

// TestSizes checks how much a browser loads, and that each module that is imported exists.
func TestSizes(t *testing.T) {
	t.Parallel()
	files := uiFiles(t)
	size := func(name string) int {
		var b bytes.Buffer
		w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write(files[name])
		_ = w.Close()
		return b.Len()
	}
	first := map[string]bool{"index.html": true, "app.css": true, "icon.svg": true}
	closure(t, files, "app.js", first)
	closure(t, files, "views/overview.js", first)
	var sum, all, vendor int
	for name := range files {
		switch n := size(name); {
		case strings.HasSuffix(name, ".txt"), name == "texts.js": // licenses, and texts that the page does not load
		case strings.HasPrefix(name, "vendor/"):
			vendor += n
			fallthrough
		default:
			all += n
			if first[name] {
				sum += n
			}
			if path.Ext(name) == ".js" && !strings.HasPrefix(name, "vendor/") {
				closure(t, files, name, map[string]bool{})
				for _, m := range later.FindAllSubmatch(files[name], -1) {
					closure(t, files, path.Join(path.Dir(name), string(m[1])), map[string]bool{})
				}
			}
		}
	}
	t.Logf("first view %d, all %d, of others %d bytes", sum, all, vendor)
	if sum > maxFirst || all > maxAll || vendor > maxVendor {
		t.Errorf("first view %d, all %d, of others %d bytes, want at most %d, %d, %d", sum, all, vendor, maxFirst, maxAll, maxVendor)
	}
}

// TestLicenses checks that each library has its license beside it.
func TestLicenses(t *testing.T) {
	t.Parallel()
	files := uiFiles(t)
	for name := range files {
		if license := strings.TrimSuffix(name, ".js") + ".LICENSE.txt"; strings.HasPrefix(name, "vendor/") && path.Ext(name) == ".js" && len(files[license]) == 0 {
			t.Errorf("%s has no license", name)
		}
	}
}
