package access

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/lmosd/lmosd/internal/yamltext"
)

// header begins a new file of rules.
const header = `# Access rules of this node. A changed file is read again within seconds.
# Callers: anyone, own, partners, local, untrusted, NAME, NAME/ROLE, own/ROLE, token:NAME, oidc:PROVIDER:SUBJECT, group:NAME, a DID. A rule that denies wins.
# Operations: find, read, write, invoke, subscribe, call (the last four); connect, store, relay (of the node).
`

// errLayout is the error for a file whose layout the functions below cannot edit.
var errLayout = errors.New("the layout of the file cannot be edited by a program: write one rule on each line, as - {allow: …, to: …}")

// Append returns a file of rules with one more rule at the end. Comments and all other lines stay. A text without rules gets them; an empty
// one gets a comment as well. The error is an [*Error] for an invalid file, or says that the layout of the file cannot be edited.
func Append(file string, text []byte, r Rule) ([]byte, error) {
	before, err := parseRules(file, text)
	if err != nil {
		return nil, err
	}
	e := newEditor(text)
	item := "- " + r.Text()
	switch at := before.last(); {
	case at == nil && len(text) == 0:
		e.lines = strings.SplitAfter(header+"apiVersion: "+apiVersion+"\nrules:\n  "+item+"\n", "\n")
	case at == nil && e.isBlank():
		e.insert(len(e.lines), "apiVersion: "+apiVersion, "rules:", "  "+item)
	case at == nil:
		e.insert(len(e.lines), "rules:", "  "+item)
	case at.list == nil:
		e.insert(at.key.Line, strings.Repeat(" ", at.key.Column+1)+item)
	case at.list.IsFlowStyle:
		text := r.Text()
		if len(at.list.Values) > 0 {
			text = ", " + text
		}
		e.replace(at.list.End, at.list.End, text, false)
	default:
		dash := at.list.Entries[len(at.list.Entries)-1].Start.Position
		e.insert(e.itemEnd(dash), strings.Repeat(" ", dash.Column-1)+item)
	}
	return e.verified(file, append(before.rules(), r))
}

// Remove returns a file of rules without the rules at some lines, as [Entry.ID] has them. Comments and all other lines stay. The error is
// that of Append.
func Remove(file string, text []byte, lines []int) ([]byte, error) {
	before, err := parseRules(file, text)
	if err != nil {
		return nil, err
	}
	e := newEditor(text)
	var rest []Rule
	for _, d := range slices.Backward(before) { // from the end, so that places stay valid
		for i, one := range slices.Backward(d.items) {
			switch {
			case !slices.Contains(lines, one.at.Line):
				rest = append(rest, one.rule)
			case d.list.IsFlowStyle:
				if !e.removeFlow(d.list, i) {
					return nil, errLayout
				}
			default:
				dash := d.list.Entries[i].Start.Position
				e.lines = slices.Delete(e.lines, dash.Line-1, e.itemEnd(dash))
			}
		}
	}
	slices.Reverse(rest)
	return e.verified(file, rest)
}

// An editor changes the lines of a file.
type editor struct {
	lines []string // with their ends
	end   string   // of a line
}

func newEditor(text []byte) *editor {
	e := &editor{lines: strings.SplitAfter(string(text), "\n"), end: "\n"}
	if last := len(e.lines) - 1; e.lines[last] == "" {
		e.lines = e.lines[:last]
	}
	if len(e.lines) > 0 && strings.HasSuffix(e.lines[0], "\r\n") {
		e.end = "\r\n"
	}
	return e
}

// insert inserts lines before the line with index i.
func (e *editor) insert(i int, lines ...string) {
	if i > 0 && !strings.HasSuffix(e.lines[i-1], "\n") {
		e.lines[i-1] += e.end
	}
	for n := range lines {
		lines[n] += e.end
	}
	e.lines = slices.Insert(e.lines, i, lines...)
}

// isBlank reports whether a text has only comments.
func (e *editor) isBlank() bool {
	return !slices.ContainsFunc(e.lines, func(line string) bool {
		line = strings.TrimSpace(line)
		return line != "" && line[0] != '#'
	})
}

// itemEnd returns the index of the line after an element of a list, whose dash is at a position: the element has the lines that are indented
// more than the dash. Empty lines and comments at its end do not count.
func (e *editor) itemEnd(dash *token.Position) int {
	end := dash.Line
	for i := dash.Line; i < len(e.lines); i++ {
		content := strings.TrimLeft(e.lines[i], " ")
		switch indent := len(e.lines[i]) - len(content); {
		case strings.TrimSpace(content) == "":
		case indent < dash.Column:
			return end
		default:
			end = i + 1
		}
	}
	return end
}

// replace replaces the text between two tokens of one line, the last of which is included if through is true.
func (e *editor) replace(from, to *token.Token, text string, through bool) bool {
	a, b := from.Position, to.Position
	if a.Line != b.Line || a.Line > len(e.lines) {
		return false
	}
	line := []rune(e.lines[a.Line-1])
	end := b.Column - 1
	if through {
		end++
	}
	if a.Column < 1 || end > len(line) {
		return false
	}
	e.lines[a.Line-1] = string(line[:a.Column-1]) + text + string(line[end:])
	return true
}

// removeFlow removes an element of a list in brackets, with its comma.
func (e *editor) removeFlow(list *ast.SequenceNode, i int) bool {
	item, ok := list.Values[i].(*ast.MappingNode)
	if !ok || item.Start == nil || item.End == nil || !e.replace(item.Start, item.End, "", true) {
		return false
	}
	line, at := []rune(e.lines[item.Start.Position.Line-1]), item.Start.Position.Column-1
	before, after := string(line[:at]), string(line[at:])
	if rest, ok := strings.CutPrefix(strings.TrimLeft(after, " "), ","); ok {
		after = strings.TrimLeft(rest, " ")
	} else {
		before = strings.TrimSuffix(strings.TrimRight(before, " "), ",")
	}
	e.lines[item.Start.Position.Line-1] = before + after
	return true
}

// verified returns the text if it has exactly the rules.
func (e *editor) verified(file string, want []Rule) ([]byte, error) {
	text := []byte(strings.Join(e.lines, ""))
	after, err := parseRules(file, text)
	if err != nil || !slices.EqualFunc(after.rules(), want, func(a, b Rule) bool { return reflect.DeepEqual(a, b) }) {
		return nil, errLayout
	}
	return text, nil
}

// documents are the parts of a file that have rules.
type documents []document

// A document is one YAML document with the member rules.
type document struct {
	key   *token.Position
	list  *ast.SequenceNode // nil: null
	items []item
}

// An item is a rule with its place.
type item struct {
	rule Rule
	at   *token.Position
}

func (d documents) last() *document {
	if len(d) == 0 {
		return nil
	}
	return &d[len(d)-1]
}

func (d documents) rules() (all []Rule) {
	for _, one := range d {
		for _, i := range one.items {
			all = append(all, i.rule)
		}
	}
	return all
}

// parseRules parses a file in the short form. The error is an [*Error].
func parseRules(file string, text []byte) (all documents, err error) {
	doc, err := yamltext.Parse(text)
	if err != nil {
		return nil, yamlError(file, err)
	}
	for _, d := range doc.Docs {
		if _, isComment := d.Body.(*ast.CommentGroupNode); d.Body == nil || isComment {
			continue
		}
		var head struct {
			APIVersion string     `yaml:"apiVersion"`
			Rules      []ast.Node `yaml:"rules"`
		}
		if err := yamltext.Decode(d.Body, &head); err != nil {
			return nil, yamlError(file, err)
		}
		if head.APIVersion != apiVersion {
			return nil, &Error{File: file, Line: 1, Msg: fmt.Sprintf("expected apiVersion: %s, got %q", apiVersion, head.APIVersion)}
		}
		one, found := rulesOf(d.Body)
		for _, n := range head.Rules {
			i, err := itemOf(file, n)
			if err != nil {
				return nil, err
			}
			one.items = append(one.items, i)
		}
		if found || len(one.items) > 0 {
			all = append(all, one)
		}
	}
	return all, nil
}

// rulesOf returns the place of the member rules.
func rulesOf(body ast.Node) (d document, found bool) {
	m, ok := body.(*ast.MappingNode)
	if !ok {
		return d, false
	}
	for _, v := range m.Values {
		if at := v.Key.GetToken(); at.Value == "rules" {
			d.key = at.Position
			d.list, _ = v.Value.(*ast.SequenceNode)
			return d, true
		}
	}
	return d, false
}

func itemOf(file string, n ast.Node) (item, error) {
	if n == nil {
		return item{}, &Error{File: file, Msg: "a rule is empty"}
	}
	i := item{at: n.GetToken().Position}
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 {
		i.at = m.Values[0].Key.GetToken().Position
	}
	if err := yamltext.Decode(n, &i.rule); err != nil {
		return i, yamlError(file, err)
	}
	return i, nil
}
