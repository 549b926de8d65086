package arch

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	code    = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	sign    = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	target  = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
)

// anchors returns the names by which links refer to the headings of a page, as GitHub makes them.
func anchors(page string) map[string]bool {
	names := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		text := link.ReplaceAllString(strings.ReplaceAll(m[1], "`", ""), "")
		names[strings.ReplaceAll(sign.ReplaceAllString(strings.ToLower(text), ""), " ", "-")] = true
	}
	for _, m := range target.FindAllStringSubmatch(page, -1) {
		names[m[1]] = true
	}
	return names
}

// TestLinksOfPages follows the links between the pages of the project: the file exists, and so does the heading.
func TestLinksOfPages(t *testing.T) {
	t.Parallel()
	root := "../.."
	pages := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git" || d.Name() == "testdata"):
			return filepath.SkipDir
		case strings.HasSuffix(path, ".md") || d.Name() == "llms.txt":
			b, err := os.ReadFile(path)
			pages[path] = string(b)
			return err
		}
		return nil
	})
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for path, page := range pages {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(page, ""), -1) {
			to, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(to, ":") { // of another site
				continue
			}
			file := path
			if to != "" {
				file = filepath.Join(filepath.Dir(path), to)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s leads to %s, which does not exist", path, m[1])
				continue
			}
			if text, ok := pages[file]; ok && anchor != "" && !anchors(text)[anchor] {
				t.Errorf("%s leads to %s, which has no such heading", path, m[1])
			}
		}
	}
}
