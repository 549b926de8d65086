package arch

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Limits of package node, which only connects the parts of a node: its lines without tests, and the fields of its type Node. They only become
// smaller.
const (
	maxNodeLines  = 1324
	maxNodeFields = 20
)

func TestNodeIsWiring(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../node/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("got %d files, %v", len(files), err)
	}
	lines, fields := 0, 0
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lines += bytes.Count(text, []byte("\n"))
		f, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.TypeSpec); ok && s.Name.Name == "Node" {
				for _, field := range s.Type.(*ast.StructType).Fields.List {
					fields += max(len(field.Names), 1)
				}
			}
			return true
		})
	}
	if fields == 0 || lines > maxNodeLines || fields > maxNodeFields {
		t.Errorf("package node has %d lines, %d at most; type Node has %d fields, %d at most", lines, maxNodeLines, fields, maxNodeFields)
	}
}
