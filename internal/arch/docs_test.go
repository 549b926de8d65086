package arch

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Pages and comments name decisions by number.
func TestDecisionNumbersAreUnique(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../docs/decisions/[0-9][0-9][0-9][0-9]-*.md")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	by := map[string]string{}
	for _, f := range files {
		name := filepath.Base(f)
		if other := by[name[:4]]; other != "" {
			t.Errorf("%s and %s have one number: give the later one the next that is free", other, name)
		}
		by[name[:4]] = name
	}
}

// TestContributingNamesFiles checks the paths in docs/contributing.md: quoted texts with a slash or the name of a file.
func TestContributingNamesFiles(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../docs/contributing.md")
	if err != nil {
		t.Fatal(err)
	}
	paths := 0
	for _, m := range regexp.MustCompile("`([a-z0-9_./-]+)`").FindAllStringSubmatch(string(b), -1) {
		if path := m[1]; strings.Contains(path, "/") && !strings.Contains(path, "...") || strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".md") {
			paths++
			if _, err := os.Stat("../../" + path); err != nil {
				t.Errorf("docs/contributing.md names %s, which does not exist", path)
			}
		}
	}
	if paths < 20 {
		t.Errorf("expected at least 20 paths in docs/contributing.md, found %d", paths)
	}
}

// TestCommentsBeginWithTheName checks the comments of functions and types outside of tests. A comment that names another identifier was
// written before a rename.
func TestCommentsBeginWithTheName(t *testing.T) {
	t.Parallel()
	checked := 0
	for path, file := range goFiles(t) {
		check := func(name string, doc *ast.CommentGroup) {
			words := strings.Fields(doc.Text())
			if len(words) > 1 && (words[0] == "A" || words[0] == "An" || words[0] == "The") {
				words = words[1:]
			}
			if checked++; len(words) == 0 || strings.Trim(words[0], ",.:;") != name {
				t.Errorf("%s: the comment of %s begins with %q", path, name, strings.Join(words[:min(len(words), 3)], " "))
			}
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Doc != nil {
					check(d.Name.Name, d.Doc)
				}
			case *ast.GenDecl:
				if d.Tok == token.TYPE && d.Doc != nil && !d.Lparen.IsValid() {
					check(d.Specs[0].(*ast.TypeSpec).Name.Name, d.Doc)
				}
			}
		}
	}
	if checked < 1000 {
		t.Errorf("checked %d comments, expected at least 1000", checked)
	}
}

// TestPromisesNameTests checks the table of docs/security.md: each test that it names exists in the package before it.
func TestPromisesNameTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, m := range regexp.MustCompile("`([a-z0-9/]+)` \\((Test[^)]*)\\)").FindAllStringSubmatch(string(page), -1) {
		files, err := filepath.Glob("../../" + m[1] + "/*_test.go")
		if err != nil || len(files) == 0 {
			t.Errorf("docs/security.md names tests of %s, which has none", m[1])
		}
		var tests strings.Builder
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			tests.Write(text)
		}
		for name := range strings.SplitSeq(m[2], ", ") {
			if named++; !strings.Contains(tests.String(), "\nfunc "+name+"(") {
				t.Errorf("docs/security.md names %s in %s, which does not exist", name, m[1])
			}
		}
	}
	if named < 30 {
		t.Errorf("expected at least 30 tests in docs/security.md, found %d", named)
	}
}
