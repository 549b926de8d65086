package configs

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/yamltext"
)

// errLayout is the error of a file whose form the editor does not know: it never writes what it cannot read again.
var errLayout = interact.Errorf(interact.ConfigFile, "change the file by hand", "the layout of the file cannot be edited")

// Edit returns a configuration file with another value of a key, as it would be in an environment variable or a flag; without values, the key is
// removed. All other lines stay, with their comments. The error is an [*Error] for a file or a value with an error, or says that the layout
// of the file cannot be edited.
func Edit(name string, source []byte, key string, values []string, unset bool) ([]byte, error) {
	var ps problems
	before := readYAML(name, source, &ps)
	c := Default()
	c.places = map[string]place{}
	f, ok := c.field(key)
	if !ok {
		return nil, interact.Errorf(interact.ConfigUnknown, didYouMean(key, names(), "see the keys and their values"), "no key is called %q", key)
	}
	text := ""
	if !unset {
		if len(values) == 1 { // a list with commas is one argument, as in a variable
			values = elements(f, values[0])
		}
		c.apply([]setting{{key, values, place{text: "the new value"}}}, &ps)
		text = f.yaml()
	}
	if err := ps.err(); err != nil {
		return nil, err
	}
	next, err := editKey(source, key, text)
	if err != nil {
		return nil, err
	}
	return next, sameBut(name, before, next, key, f.texts(), unset)
}

// names returns the names of all keys.
func names() (all []string) {
	for f := range Default().fields() {
		all = append(all, f.key)
	}
	return all
}

// sameBut returns an error if a file has other settings than before, except the one of key.
func sameBut(name string, before []setting, next []byte, key string, want []string, unset bool) error {
	var ps problems
	after := readYAML(name, next, &ps)
	found := false
	others := func(list []setting) map[string][]string {
		m := map[string][]string{}
		for _, s := range list {
			if s.key != key {
				m[s.key] = s.values
			}
		}
		return m
	}
	for _, s := range after {
		found = found || s.key == key && (len(want) == 0 && len(s.values) == 0 || slices.Equal(s.values, want) || s.key == "http.oidc")
	}
	a, b := others(before), others(after)
	same := len(a) == len(b) && ps.err() == nil && found != unset
	for k, v := range a {
		got, ok := b[k]
		same = same && ok && slices.Equal(got, v)
	}
	if !same {
		return errLayout
	}
	return nil
}

// editKey replaces, adds or (with an empty text) removes the key in YAML. The caller checks the result.
func editKey(source []byte, key, text string) ([]byte, error) {
	file, err := yamltext.Parse(source)
	if err != nil {
		return nil, errLayout
	}
	e := newLines(source)
	var body ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil && len(entriesOf(doc.Body)) > 0 {
			body = doc.Body
			break
		}
	}
	levels := strings.Split(key, ".")
	var within []*ast.MappingValueNode // the entries on the path of the key
	for n, rest := body, levels; n != nil && len(rest) > 0; rest = rest[1:] {
		entry := entryOf(n, rest[0])
		if entry == nil {
			break
		}
		within = append(within, entry)
		n = entry.Value
	}
	switch {
	case text == "" && len(within) < len(levels):
		return source, nil // it is not there
	case text == "":
		return e.remove(body, within)
	case len(within) == len(levels):
		return e.replaceValue(within[len(within)-1], text)
	}
	return e.add(body, within, levels[len(within):], text)
}

// entriesOf returns the entries of a mapping.
func entriesOf(n ast.Node) []*ast.MappingValueNode {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}
	}
	return nil
}

func entryOf(n ast.Node, name string) *ast.MappingValueNode {
	for _, e := range entriesOf(n) {
		if text, ok := scalar(e.Key); ok && text == name {
			return e
		}
	}
	return nil
}

// lines are the lines of a file, with their ends.
type lines []string

func newLines(source []byte) lines {
	all := strings.SplitAfter(string(source), "\n")
	if last := len(all) - 1; all[last] == "" {
		all = all[:last]
	}
	return all
}

func (e lines) bytes() []byte { return []byte(strings.Join(e, "")) }

// insert inserts lines before the one with index i.
func (e lines) insert(i int, added ...string) lines {
	end := "\n"
	if len(e) > 0 && strings.HasSuffix(e[0], "\r\n") {
		end = "\r\n"
	}
	if i > 0 && !strings.HasSuffix(e[i-1], "\n") {
		e[i-1] += end
	}
	for n := range added {
		added[n] += end
	}
	return slices.Insert(e, i, added...)
}

// isFlow reports whether a mapping is written in braces.
func isFlow(n ast.Node) bool {
	m, ok := n.(*ast.MappingNode)
	return ok && m.IsFlowStyle
}

// extent returns the index of the line after an entry in block style: those that are indented more than its key, and the elements of a list
// below it. Empty lines and comments at the end belong to what follows.
func (e lines) extent(key *token.Position) int {
	end := key.Line
	for i := key.Line; i < len(e); i++ {
		content := strings.TrimLeft(e[i], " ")
		indent := len(e[i]) - len(content)
		content = strings.TrimSpace(content)
		switch {
		case content == "" || content[0] == '#':
		case indent >= key.Column || indent == key.Column-1 && (content == "-" || strings.HasPrefix(content, "- ")):
			end = i + 1
		default:
			return end
		}
	}
	return end
}

// span returns the place of a value on one line: the index of the line, and the columns from 0.
func (e lines) span(n ast.Node) (line, from, to int, ok bool) {
	first, last := n.GetToken(), n.GetToken()
	switch n := n.(type) {
	case *ast.SequenceNode:
		if !n.IsFlowStyle || n.Start == nil || n.End == nil {
			return 0, 0, 0, false
		}
		first, last = n.Start, n.End
	case *ast.MappingNode:
		if !n.IsFlowStyle || n.Start == nil || n.End == nil {
			return 0, 0, 0, false
		}
		first, last = n.Start, n.End
	case *ast.StringNode, *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.NullNode:
	default:
		return 0, 0, 0, false
	}
	if first.Position.Line != last.Position.Line || first.Position.Line > len(e) {
		return 0, 0, 0, false
	}
	line, from = first.Position.Line-1, first.Position.Column-1
	text := []rune(strings.TrimRight(e[line], "\r\n"))
	to = len(text)
	if next := last.Next; next != nil && next.Position.Line == last.Position.Line {
		to = next.Position.Column - 1
	}
	if first != last {
		to = last.Position.Column
	}
	if from < 0 || from > to || to > len(text) {
		return 0, 0, 0, false
	}
	return line, from, from + len([]rune(strings.TrimRight(string(text[from:to]), " \t"))), true
}

// replaceSpan replaces a part of a line.
func (e lines) replaceSpan(line, from, to int, text string) {
	r := []rune(e[line])
	e[line] = string(r[:from]) + text + string(r[to:])
}

// replaceValue replaces the value of an entry.
func (e lines) replaceValue(entry *ast.MappingValueNode, text string) ([]byte, error) {
	key := entry.Key.GetToken().Position
	if _, null := entry.Value.(*ast.NullNode); null { // it may have no text
		line := strings.TrimRight(e[key.Line-1], "\r\n")
		if at := strings.Index(line, ":"); at >= 0 && strings.Trim(strings.SplitN(line[at+1:], "#", 2)[0], " \t~nul") == "" {
			_, comment, has := strings.Cut(line[at+1:], "#")
			line = line[:at+1] + " " + text
			if has {
				line += " #" + comment
			}
			e[key.Line-1] = line + "\n"
			return e.bytes(), nil
		}
	}
	if line, from, to, ok := e.span(entry.Value); ok {
		e.replaceSpan(line, from, to, text)
		return e.bytes(), nil
	}
	if list, ok := entry.Value.(*ast.SequenceNode); ok && !list.IsFlowStyle {
		return e.replaceList(key, list, text)
	}
	return nil, errLayout
}

// replaceList replaces the elements of a list in block style. Elements that stay keep their lines and comments.
func (e lines) replaceList(key *token.Position, list *ast.SequenceNode, text string) ([]byte, error) {
	var want []string
	if err := yamltext.Unmarshal([]byte(text), &want); err != nil || len(list.Entries) == 0 {
		return nil, errLayout
	}
	end := e.extent(key)
	indent := strings.Repeat(" ", list.Entries[0].Start.Position.Column-1)
	rows, from := map[string][]string{}, key.Line
	for i := range list.Entries {
		until := end
		if i+1 < len(list.Entries) {
			for until = list.Entries[i+1].Start.Position.Line - 1; until-1 > from && strings.HasPrefix(strings.TrimSpace(e[until-1]), "#"); {
				until-- // the comment is about the next element
			}
		}
		value, _ := scalar(list.Values[i])
		rows[value] = e[from:until]
		from = until
	}
	var next []string
	for _, value := range want {
		kept := slices.Clone(rows[value])
		if len(kept) == 0 {
			kept = []string{indent + "- " + quoted(value) + "\n"}
		}
		next = append(next, kept...)
	}
	if len(want) == 0 {
		head := strings.TrimRight(e[key.Line-1], " \r\n")
		return slices.Replace(e, key.Line-1, end, head+" []\n").bytes(), nil
	}
	return slices.Replace(e, key.Line, end, next...).bytes(), nil
}

// remove removes the last of entries, and the sections that become empty.
func (e lines) remove(body ast.Node, within []*ast.MappingValueNode) ([]byte, error) {
	for i := len(within) - 1; i >= 0; i-- {
		section := body
		if i > 0 {
			section = within[i-1].Value
		}
		if len(entriesOf(section)) == 1 && i > 0 {
			continue // the section goes, too
		}
		key := within[i].Key.GetToken().Position
		if !isFlow(section) {
			return slices.Delete(e, key.Line-1, e.extent(key)).bytes(), nil
		}
		line, _, to, ok := e.span(within[i].Value)
		if !ok || line != key.Line-1 {
			return nil, errLayout
		}
		r := []rune(e[line])
		before, after := string(r[:key.Column-1]), string(r[to:])
		if rest, ok := strings.CutPrefix(strings.TrimLeft(after, " "), ","); ok {
			after = strings.TrimLeft(rest, " ")
		} else {
			before = strings.TrimSuffix(strings.TrimRight(before, " "), ",")
		}
		e[line] = before + after
		return e.bytes(), nil
	}
	return nil, errLayout
}

// add adds a key below the last of entries, which the file has already.
func (e lines) add(body ast.Node, within []*ast.MappingValueNode, levels []string, text string) ([]byte, error) {
	section, indent, at := body, "", len(e)
	if len(within) > 0 {
		last := within[len(within)-1]
		section = last.Value
		key := last.Key.GetToken().Position
		indent, at = strings.Repeat(" ", key.Column+1), e.extent(key)
		if _, null := section.(*ast.NullNode); null && strings.Contains(e[key.Line-1], "{") {
			return nil, errLayout
		}
		if all := entriesOf(section); len(all) > 0 && !isFlow(section) {
			indent = strings.Repeat(" ", all[0].Key.GetToken().Position.Column-1)
		}
	}
	if isFlow(section) {
		line, _, to, ok := e.span(section)
		if !ok {
			return nil, errLayout
		}
		inner := ""
		for _, level := range levels[:len(levels)-1] {
			inner += level + ": {"
		}
		inner += levels[len(levels)-1] + ": " + text + strings.Repeat("}", len(levels)-1)
		head := strings.TrimRight(string([]rune(e[line])[:to-1]), " ")
		if len(entriesOf(section)) > 0 {
			inner = ", " + inner
		}
		e[line] = head + inner + string([]rune(e[line])[to-1:])
		return e.bytes(), nil
	}
	var added []string
	for i, level := range levels {
		row := indent + strings.Repeat("  ", i) + level + ":"
		if i == len(levels)-1 {
			row += " " + text
		}
		added = append(added, row)
	}
	return e.insert(at, added...).bytes(), nil
}

// Diff returns the changed lines between two texts, each after "-" or "+".
func Diff(before, after []byte) (changed []string) {
	was, is := newLines(before), newLines(after)
	head, tail := 0, 0
	for head < min(len(was), len(is)) && was[head] == is[head] {
		head++
	}
	for tail < min(len(was), len(is))-head && was[len(was)-1-tail] == is[len(is)-1-tail] {
		tail++
	}
	for _, side := range []struct {
		mark string
		rows lines
	}{{"-", was[head : len(was)-tail]}, {"+", is[head : len(is)-tail]}} {
		for _, row := range side.rows {
			changed = append(changed, side.mark+" "+strings.TrimRight(row, "\r\n"))
		}
	}
	return changed
}

// NewFile is the start of a new configuration file.
func NewFile() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\napiVersion: %s\n", schemaLine, APIVersion)
	return b.Bytes()
}
