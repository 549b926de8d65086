package arch

import (
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of packages in docs/architecture.md")

var packageTable = regexp.MustCompile(`(?s)(<!-- generated: packages -->\n\n).*?(\n<!-- end -->)`)

// TestThePageListsThePackages holds the table of packages in docs/architecture.md against the layers and the package comments.
func TestThePageListsThePackages(t *testing.T) {
	t.Parallel()
	const page = "../../docs/architecture.md"
	old, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if !packageTable.Match(old) {
		t.Fatalf("%s has no table of packages", page)
	}
	var b strings.Builder
	b.WriteString("| layer | package | purpose |\n|---|---|---|\n")
	for layer := len(rows) - 1; layer >= 0; layer-- {
		for _, pkg := range rows[layer] {
			fmt.Fprintf(&b, "| %d | `%s` | %s |\n", layer+1, pkg, purpose(t, pkg))
		}
	}
	now := packageTable.ReplaceAllString(string(old), "${1}"+strings.ReplaceAll(b.String(), "$", "$$")+"${2}")
	switch {
	case now == string(old):
	case *update:
		if err := os.WriteFile(page, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s differs from the package comments: go test ./internal/arch -run TestThePageListsThePackages -update", page)
	}
}

var (
	subject  = regexp.MustCompile(`^(Package|Command) \S+ (.)`)
	docLink  = regexp.MustCompile(`\[([A-Za-z.]+)\]`)
	sentence = regexp.MustCompile(`(?s)^.*?\.(\s|$)`)
)

// purpose returns the first sentence of the comment of a package, without its subject.
func purpose(t *testing.T, pkg string) string {
	t.Helper()
	text := strings.Join(strings.Fields(sentence.FindString(comment(t, pkg))), " ")
	m := subject.FindStringSubmatch(text)
	if m == nil {
		t.Errorf("package %s has no comment that begins with \"Package %s\"", pkg, filepath.Base(pkg))
		return ""
	}
	return docLink.ReplaceAllString(strings.ToUpper(m[2])+text[len(m[0]):], "`$1`")
}

// comment returns the comment of a package, or "".
func comment(t *testing.T, pkg string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", pkg, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if f.Doc != nil && subject.MatchString(f.Doc.Text()) {
			return f.Doc.Text()
		}
	}
	return ""
}

var fileName = regexp.MustCompile(`\b[a-z0-9_]+\.go\b`)

// TestPackageCommentsNameTheirFiles: the files that a package comment names are in the package.
func TestPackageCommentsNameTheirFiles(t *testing.T) {
	t.Parallel()
	named := 0
	for _, row := range rows {
		for _, pkg := range row {
			for _, name := range fileName.FindAllString(comment(t, pkg), -1) {
				named++
				if _, err := os.Stat(filepath.Join("../..", pkg, name)); err != nil {
					t.Errorf("the comment of package %s names %s: %v", pkg, name, err)
				}
			}
		}
	}
	if named < 10 {
		t.Errorf("%d files are named", named)
	}
}

// TestPackageCommentsAreWhereReadersLook holds the rules of docs/contributing.md for the file of a package comment and for file names.
func TestPackageCommentsAreWhereReadersLook(t *testing.T) {
	t.Parallel()
	names := map[string][]string{} // by folder
	for path := range goFiles(t) {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("../..", path), nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		dir, name := filepath.Split(path)
		names[dir] = append(names[dir], strings.TrimSuffix(name, ".go"))
		if own := filepath.Base(dir) + ".go"; f.Doc != nil && strings.HasPrefix(f.Doc.Text(), "Package ") && name != own && name != "doc.go" {
			t.Errorf("the comment of package %s is in %s, expected %s or doc.go", dir, name, own)
		} else if f.Doc != nil && strings.HasPrefix(f.Doc.Text(), "Command ") && name != "main.go" {
			t.Errorf("the comment of the command %s is in %s, expected main.go", dir, name)
		}
	}
	for dir, all := range names {
		for _, long := range all {
			for _, short := range all {
				if ending := strings.TrimPrefix(long, short); ending != "" && len(ending) <= 2 && ending != long && strings.Trim(ending, "0123456789") != "" && len(short) > 3 {
					t.Errorf("%s has %s.go beside %s.go: names that differ by an ending are confused", dir, short, long)
				}
			}
		}
	}
}
