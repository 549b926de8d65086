package arch

import (
	"go/ast"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// literals calls f with each string literal of n.
func literals(n ast.Node, f func(text string)) {
	ast.Inspect(n, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			text, _ := strconv.Unquote(l.Value) // the parser has accepted it
			f(text)
		}
		return true
	})
}

// members calls f with the value of each member of a composite literal that has the name.
func members(n ast.Node, name string, f func(value ast.Expr)) {
	ast.Inspect(n, func(n ast.Node) bool {
		if kv, ok := n.(*ast.KeyValueExpr); ok {
			if k, ok := kv.Key.(*ast.Ident); ok && k.Name == name {
				f(kv.Value)
			}
		}
		return true
	})
}

// Below the command line no text names a command, and no hint a flag: they are steps, which each reader renders.
func TestTextsNameNoCommands(t *testing.T) {
	t.Parallel()
	files, names := goFiles(t), map[string]bool{}
	for path, file := range files {
		if strings.HasPrefix(path, "cmd/lmosd/") {
			members(file, "Use", func(use ast.Expr) {
				literals(use, func(text string) {
					if name, _, _ := strings.Cut(text, " "); name != "lmosd" && len(name) > 1 {
						names[name] = true
					}
				})
			})
		}
	}
	if len(names) < 30 {
		t.Fatalf("found only %d commands: %v", len(names), names)
	}
	command := regexp.MustCompile(`\blmosd (` + strings.Join(slices.Collect(maps.Keys(names)), "|") + `)\b`)
	flag := regexp.MustCompile("(^|[ ,:`])--[a-z]")
	hints := 0
	for path, file := range files {
		top, _, _ := strings.Cut(path, "/")
		if slices.Contains([]string{"cmd", "testnet", "bench", "examples", "interop"}, top) {
			continue
		}
		literals(file, func(text string) {
			if command.MatchString(text) {
				t.Errorf("%s: %q", path, text)
			}
		})
		hint := func(n ast.Expr) {
			hints++
			literals(n, func(text string) {
				if flag.MatchString(text) {
					t.Errorf("%s: %q", path, text)
				}
			})
		}
		members(file, "Hint", hint)
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && len(call.Args) > 2 {
				if name, ok := call.Fun.(*ast.SelectorExpr); ok && name.Sel.Name == "Errorf" {
					hint(call.Args[1])
				}
			}
			return true
		})
	}
	if hints < 300 {
		t.Errorf("there are %d hints: the walk is broken", hints)
	}
}
