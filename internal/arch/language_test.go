package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// retired are words that no identifier contains: this project used them for things that have a standard name, which is on the right.
// Words that also have a standard meaning (follow, item, account, offer, place) are not in the list.
var retired = map[string]string{
	"rumour": "suspicion", "rumours": "suspicion", "grave": "tombstone", "bury": "sign a tombstone", "buried": "tombstone", "heir": "successor",
	"guest": "attached agent", "guests": "attached agents", "door": "listener", "doors": "listeners", "shelf": "index, buffer pool",
	"lane": "session", "lanes": "session", "hurry": "startFrameTimer", "relax": "stopFrameTimer", "grudge": "backoff", "facade": "aggregator",
	"desk": "executor", "narrator": "status reporter", "tongue": "dialect detector", "patience": "timeout", "linger": "idle timeout",
	"chatter": "rate limit", "berth": "slot", "parcel": "message", "anew": "again, refreshed", "lately": "recently", "meanwhile": "since",
	"vain": "failed attempts", "stranger": "untrusted peer, adversary", "strangers": "untrusted peers", "liar": "forged signer", "liars": "forged signers",
	"crowd": "synthetic agents", "greet": "fetchRecords", "interview": "fetchRecords", "lied": "violation", "blame": "penalize",
	"shun": "ban", "doubt": "penalize, suspect", "told": "reported, sent", "tells": "reports, sends", "telling": "announcement", "tell": "announce, report, send",
	"heard": "received", "hear": "receive", "hears": "receives", "ear": "subscriber", "said": "reported, received", "unsaid": "default", "spoken": "scripted",
	"begun": "started", "nobody": "none", "somebody": "another caller", "whoever": "the caller", "whose": "owner", "young": "legacy session", "lone": "stateless",
	"era": "revision", "rehost": "rewrite forms", "fork": "equivocation", "forks": "equivocation", "nearby": "local discovery", "moment": "timestamp",
}

// given are identifiers of the standard library, which interfaces of the project repeat.
var given = map[string]bool{"SetLinger": true} // net.TCPConn

// identifiers returns those of the expressions that are identifiers.
func identifiers(of ...ast.Expr) (ids []*ast.Ident) {
	for _, e := range of {
		if id, ok := e.(*ast.Ident); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// retiredWords returns the identifiers of a file that contain a retired word.
func retiredWords(f *ast.File) (found []string) {
	seen := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		var names []*ast.Ident
		switch n := n.(type) {
		case *ast.FuncDecl:
			names = append(names, n.Name)
		case *ast.TypeSpec:
			names = append(names, n.Name)
		case *ast.ValueSpec:
			names = n.Names
		case *ast.Field:
			names = n.Names
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				names = identifiers(n.Lhs...)
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				names = identifiers(n.Key, n.Value)
			}
		}
		for _, id := range names {
			for _, w := range words(id.Name) {
				if retired[w] != "" && !seen[id.Name] && !given[id.Name] {
					seen[id.Name] = true
					found = append(found, id.Name+" ("+retired[w]+")")
				}
			}
		}
		return true
	})
	return found
}

var upper = regexp.MustCompile(`[A-Z]+[a-z0-9]*|[a-z0-9]+`)

// words splits an identifier at its capitals, in lower case.
func words(name string) []string {
	all := upper.FindAllString(name, -1)
	for i, w := range all {
		all[i] = strings.ToLower(w)
	}
	return all
}

func TestRetiredWordsDoNotReturn(t *testing.T) {
	t.Parallel()
	for path, f := range goFiles(t) {
		if found := retiredWords(f); len(found) > 0 {
			t.Errorf("%s has identifiers with retired words: %s", path, strings.Join(found, ", "))
		}
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"newShelf": "new shelf", "HTTPDoor": "httpdoor", "a": "a", "toldAtOnce": "told at once", "lane2": "lane2"} {
		if got := strings.Join(words(name), " "); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// goFiles returns the Go files of the project that are not tests, by path, without those of node_modules and hidden folders.
func goFiles(t *testing.T) map[string]*ast.File {
	t.Helper()
	files, err := parseAll()
	if err != nil || len(files) < 300 {
		t.Fatalf("parsed %d files: %v", len(files), err)
	}
	return files
}

var parseAll = sync.OnceValues(func() (map[string]*ast.File, error) {
	const root = "../.."
	files := map[string]*ast.File{}
	return files, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		switch name := filepath.Base(path); {
		case err != nil:
			return err
		case d.IsDir() && (name == "node_modules" || name == "testdata" || len(name) > 2 && name[0] == '.'):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		files[rel], err = parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		return err
	})
})

// retiredPhrases are turns that no text of the project contains: the subject of a sentence is the party that acts, by its name.
var retiredPhrases = regexp.MustCompile(`(?i)\b(` + strings.Join([]string{
	"nobody", "somebody", "whoever", "anew", "in vain", "in words", "for ever", "(by )?which way", "at its word", "knocks?", "liars?", "strangers?", "rumou?rs?",
	"(is|are|was|were|be|been) (told|spoken|said|believed|done without)", "tells? (it|them|us|you|the|its|others|a|of|no|how|when|what|who|whether)", "told (it|them|of|apart)",
	"(says?|said) (so|who|what|how|why|when|where|whether|nothing|no|it|which|that)", "hears? (of|from|no|nothing)", "heard (of|from|no|nothing)",
	"(it|what|that|who|which|this) is no", "(is|are) none of", "who (asks?|calls?|listens?|answers?|reads?|comes?|wants?|sends?)", "what (answers|listens|calls|comes)", "talks? to",
}, "|") + `)\b`)

func TestRetiredPhrasesDoNotReturn(t *testing.T) {
	t.Parallel()
	check := func(name, text string) {
		if found := retiredPhrases.FindAllString(strings.Join(strings.Fields(text), " "), -1); len(found) > 0 {
			t.Errorf("%s has retired phrases: %s", name, strings.Join(found, ", "))
		}
	}
	for path, f := range goFiles(t) {
		if filepath.Dir(path) == "internal/textmatch" {
			continue // its literals are the stop words of users
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				check(path, l.Value)
			}
			return true
		})
	}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md", "cmd/lmosd/internal/help/help/*.txt", "cmd/lmosd/testdata/help.golden"} {
		files, err := filepath.Glob("../../" + pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, path := range files {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			check(strings.TrimPrefix(path, "../../"), string(b))
		}
	}
}

func TestRetiredPhrases(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"Nobody is told anew": 3, "the peer says so": 1, "an announcement is sent": 0, "it is not one of them": 0, "hears of it": 1} {
		if got := len(retiredPhrases.FindAllString(text, -1)); got != want {
			t.Errorf("%q: found %d, want %d", text, got, want)
		}
	}
}

// TestLogsHaveShortKeys: the attribute peer of a log line is the short key of a node, as commands print it, and no PeerID of libp2p.
func TestLogsHaveShortKeys(t *testing.T) {
	t.Parallel()
	found := 0
	for path, f := range goFiles(t) {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains([]string{"Debug", "Info", "Warn", "Error", "Log", "With"}, method.Sel.Name) {
				return true
			}
			for i, arg := range call.Args[:max(0, len(call.Args)-1)] {
				if key, ok := arg.(*ast.BasicLit); !ok || key.Value != `"peer"` {
					continue
				}
				found++
				if value := types.ExprString(call.Args[i+1]); !strings.Contains(value, "Short") && !strings.HasSuffix(value, ".name") {
					t.Errorf("%s: %s: log did.ShortPeer or DID.Short", path, value)
				}
			}
			return true
		})
	}
	if found < 30 {
		t.Errorf("%d log lines with a peer", found)
	}
}
