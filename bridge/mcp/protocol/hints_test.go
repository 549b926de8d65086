package protocol

import (
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

// hints are the texts of all hints in the sources below dir, by their place: the second argument of Errorf, and the member Hint.
func hints(t *testing.T, dir string) (all map[string]string) {
	all = map[string]string{}
	files := gotoken.NewFileSet()
	collect := func(e ast.Expr) {
		ast.Inspect(e, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == gotoken.STRING {
				text, err := strconv.Unquote(l.Value)
				if err != nil {
					t.Fatal(err)
				}
				all[files.Position(l.Pos()).String()] = text
			}
			return true
		})
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if name := called(n.Fun); name == "Errorf" && len(n.Args) > 2 {
					collect(n.Args[1])
				}
			case *ast.KeyValueExpr:
				if k, ok := n.Key.(*ast.Ident); ok && k.Name == "Hint" {
					collect(n.Value)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func called(f ast.Expr) string {
	switch f := f.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// No hint that there is reaches a model as a command: of whatever package, and with whatever code.
func TestNoHintIsACommand(t *testing.T) {
	t.Parallel()
	commands := 0
	for place, text := range hints(t, "../../..") {
		if strings.Contains(text, "lmosd ") {
			commands++
		}
		for _, code := range interact.Codes() {
			e := interact.Errorf(code, text, "it failed")
			if said := string(RespondError("1", FromError(e)).Bytes()); strings.Contains(said, "lmosd ") {
				t.Errorf("%s: %s", place, said)
			}
		}
	}
	if commands < 50 {
		t.Errorf("there are %d hints with commands: the walk is broken", commands)
	}
}

// Hints reach clients of MCP through [Hint] alone.
func TestHintsAreRenderedInOnePlace(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"../backend", "../server", "../aggregator", "../features", "../../../cmd/lmosd/internal/stdio"} {
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatal(dir, err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(gotoken.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok || s.Sel.Name != "Hint" {
					return true
				}
				if of, ok := s.X.(*ast.Ident); !ok || of.Name != "protocol" && !(of.Name == "p" && strings.HasSuffix(path, "features/task.go")) {
					t.Errorf("%s reads a hint by itself", path)
				}
				return true
			})
		}
	}
}
