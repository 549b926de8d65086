package protocol

import (
	"cmp"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

// A model gets the hint of this bridge in place of steps, which are for readers with a shell or a console.
func TestNoHintIsACommand(t *testing.T) {
	t.Parallel()
	for _, code := range interact.Codes() {
		e := interact.Errorf(code, "see it", "it failed").Then(interact.StepShow, "kettle")
		want := cmp.Or(steps[code], "see it")
		if got := string(RespondError("1", FromError(e)).Bytes()); !strings.Contains(got, want) || strings.Contains(got, "kettle") || strings.Contains(got, "lmosd ") {
			t.Errorf("%v: got %s, want %q", code, got, want)
		}
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
					t.Errorf("%s reads a hint without Hint", path)
				}
				return true
			})
		}
	}
}
