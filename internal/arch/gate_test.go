package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sources yields the parsed files of a directory and those below it, without tests and modules of their own.
func sources(t *testing.T, root string, visit func(pkg, path string, f *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && isElsewhere(root, path):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		pkg, err := filepath.Rel(root, filepath.Dir(path))
		visit(filepath.ToSlash(pkg), path, f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// callee returns the name of what a call calls: "New", or "dht.New" with its qualifier.
func callee(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			return x.Name + "." + f.Sel.Name
		}
		return "." + f.Sel.Name
	}
	return ""
}

// handlers are the packages that set stream handlers on the host they are given, with the function by which package node gives it. The others wrap a host:
// p2p has the gate, p2p/relay is given a host over gated streams by p2p, and testnet counts.
var handlers = map[string]string{"trust/exchange": ".Start", "interact/stream": "stream.New", "dht": "dht.New", "pubsub": "pubsub.New",
	"pubsub/reconcile": "reconcile.New", "pubsub/suspicion": "suspicion.New"}

var wrappers = []string{"p2p", "p2p/relay", "testnet"}

// Stream handlers are set by few packages, and package node gives them the host whose streams are gated. The raw one is for those that set no
// handler, and for package trust, whose protocol determines who a peer is.
func TestStreamHandlersAreSetOnTheGatedHost(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	sources(t, "../..", func(pkg, path string, f *ast.File) {
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok || s.Sel.Name != "SetStreamHandler" && s.Sel.Name != "SetStreamHandlerMatch" {
				return true
			}
			if found[pkg] = true; handlers[pkg] == "" && !slices.Contains(wrappers, pkg) {
				t.Errorf("%s sets a stream handler: give its package a place in this test, and the gated host", path)
			}
			return true
		})
	})
	for _, pkg := range slices.AppendSeq(slices.Clone(wrappers), maps.Keys(handlers)) {
		if !found[pkg] {
			t.Errorf("%s sets no stream handler", pkg)
		}
	}
	raw := map[string]bool{"p2p.Gate": true, "p2p.NewBootstrap": true, "p2p.NewPeers": true, "p2p.FullAddrs": true, ".Start": true}
	given := map[string]bool{}
	sources(t, "../../node", func(pkg, path string, f *ast.File) {
		if pkg != "." {
			return
		}
		for _, c := range calls(f) {
			name := callee(c)
			for _, host := range hostsOf(c) {
				switch {
				case slices.Contains(slices.Collect(maps.Values(handlers)), name):
					given[name] = true
					if gated := host == "n.network.Host"; gated == raw[name] {
						t.Errorf("%s: %s gets the host %s", path, name, host)
					}
				case host != "n.network.Host" && !raw[name] && !strings.HasPrefix(name, "errgroup."): // whose base is a context
					t.Errorf("%s: %s gets the raw host %s", path, name, host)
				}
			}
		}
	})
	for _, name := range handlers {
		if !given[name] {
			t.Errorf("package node gives %s no host that this test finds", name)
		}
	}
}

func calls(f *ast.File) (all []*ast.CallExpr) {
	ast.Inspect(f, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			all = append(all, c)
		}
		return true
	})
	return all
}

// hostsOf returns the hosts among the arguments of a call and their fields: base, own and Host, as package node names them.
func hostsOf(c *ast.CallExpr) (all []string) {
	add := func(e ast.Expr) {
		switch x := e.(type) {
		case *ast.Ident:
			if x.Name == "base" {
				all = append(all, x.Name)
			}
		case *ast.SelectorExpr:
			if x.Sel.Name == "Host" || x.Sel.Name == "own" {
				all = append(all, text(x))
			}
		}
	}
	for _, arg := range c.Args {
		add(arg)
		if lit, ok := arg.(*ast.CompositeLit); ok {
			for _, field := range lit.Elts {
				if kv, ok := field.(*ast.KeyValueExpr); ok {
					add(kv.Value)
				}
			}
		}
	}
	return all
}

func text(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return text(x.X) + "." + x.Sel.Name
	}
	return fmt.Sprintf("%T", e)
}

// The Things that messages reach are made in one place, which begins each chain with the access rules.
func TestThingsAreMadeWithTheAccessRules(t *testing.T) {
	t.Parallel()
	authorizing := map[string]int{}
	sources(t, "../..", func(pkg, path string, f *ast.File) {
		for _, c := range calls(f) {
			switch name := callee(c); {
			case strings.HasSuffix(name, ".Authorize") && strings.Contains(text(c.Fun), "Policy"):
				authorizing[pkg]++
			case name == "interact.NewPaths" && pkg != "interact/servient":
				t.Errorf("%s makes a Thing of its own paths", path)
			case name == "interact.Router" && pkg != "node" && !slices.Contains(forTests, pkg):
				t.Errorf("%s routes messages by itself", path)
			case (name == "newBindings" || strings.HasSuffix(name, ".Expose") || strings.HasSuffix(name, ".Consume")) && pkg != "interact/servient" && pkg != "node":
				t.Errorf("%s: %s makes a Thing", path, name)
			}
		}
	})
	if len(authorizing) != 1 || authorizing["interact/servient"] != 3 {
		t.Errorf("the access rules of messages are asked in %v, want the three functions of interact/servient", authorizing)
	}
	// Each function of the servient that joins the paths of a Thing asks them.
	sources(t, "../../interact/servient", func(_, path string, f *ast.File) {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			joins, asks := false, false
			ast.Inspect(fn, func(n ast.Node) bool {
				if c, ok := n.(*ast.CallExpr); ok {
					joins = joins || callee(c) == "interact.NewPaths"
					asks = asks || strings.HasSuffix(text(c.Fun), "Policy.Authorize")
				}
				return true
			})
			if joins && !asks && fn.Name.Name != "localFirst" { // that joins Things of Expose and Consume
				t.Errorf("%s: %s makes a Thing without the access rules", path, fn.Name.Name)
			}
		}
	})
}
