package configs

import (
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/lmosd/lmosd/internal/yamltext"
	"github.com/lmosd/lmosd/policy/access"
)

// A Migration replaces the keys of earlier versions in a configuration file.
type Migration struct {
	// Keys are the keys that the file has and this version does not, sorted.
	Keys []string
	// Text is the file without them.
	Text []byte
	// Rules are the access rules that replace some of them.
	Rules []access.Rule
}

// Migrate returns what is to be done in a file. Comments and all other lines stay. The error is an [*Error] for a file with another error, or says that the
// layout of the file cannot be edited.
func Migrate(name string, source []byte) (*Migration, error) {
	m := &Migration{Text: source}
	for _, key := range slices.Sorted(maps.Keys(retired)) {
		values, found, err := valuesIn(name, m.Text, key)
		if err != nil {
			return nil, err
		}
		if !found {
			continue
		}
		m.Keys = append(m.Keys, key)
		if now := moved[key]; now != "" {
			err = m.rename(key, now)
		} else {
			err = m.replace(key, values)
		}
		if err != nil {
			return nil, err
		}
	}
	var ps problems
	readYAML(name, m.Text, &ps)
	return m, ps.err()
}

// rename gives a key its present name, in its line. If the file has that, too, it counts.
func (m *Migration) rename(key, now string) (err error) {
	file, err := yamltext.Parse(m.Text)
	if err != nil {
		return errLayout
	}
	if _, found := nodeOf(file, now); found {
		m.Text, err = editKey(m.Text, key, "")
		return err
	}
	entry, _ := nodeOf(file, key)
	at, rows := entry.Key.GetToken().Position, newLines(m.Text)
	_, old := split(key)
	_, name := split(now)
	row := []rune(rows[at.Line-1])
	if end := at.Column - 1 + len(old); end > len(row) || string(row[at.Column-1:end]) != old {
		return errLayout
	}
	rows.replaceSpan(at.Line-1, at.Column-1, at.Column-1+len(old), name)
	m.Text = rows.bytes()
	return nil
}

// replace puts what replaces a key with its values in the file, or among the rules, and removes it.
func (m *Migration) replace(key string, values []string) (err error) {
	switch {
	case key == "trust.allow" && len(values) > 0:
		m.Rules = append(m.Rules, access.Rule{Allow: values, To: []string{"connect", "store", "find", "call"}})
	case key == "trust.deny" && len(values) > 0:
		m.Rules = append(m.Rules, access.Rule{Deny: values, To: []string{"*"}})
	case key == "trust.policy":
		untrusted := "open" // verified meant callers with a proven DID, which all callers have
		if len(values) == 1 && values[0] == "allowlist" {
			untrusted = "none"
		}
		if _, found, err := valuesIn("", m.Text, "trust.untrusted"); err != nil || found {
			break
		}
		if m.Text, err = editKey(m.Text, "trust.untrusted", untrusted); err != nil {
			return err
		}
	}
	m.Text, err = editKey(m.Text, key, "")
	return err
}

// valuesIn returns the texts of a key in a file, whatever keys this version has.
func valuesIn(name string, source []byte, key string) (values []string, found bool, err error) {
	file, err := yamltext.Parse(source)
	if err != nil {
		var ps problems
		readYAML(name, source, &ps)
		return nil, false, ps.err()
	}
	entry, found := nodeOf(file, key)
	if !found {
		return nil, false, nil
	}
	return valuesOf(entry.Value), true, nil
}

// nodeOf returns the entry of a key in a file, whatever keys this version has.
func nodeOf(file *ast.File, key string) (entry *ast.MappingValueNode, found bool) {
	for _, doc := range file.Docs {
		var n ast.Node = doc.Body
		for _, level := range strings.Split(key, ".") {
			if entry = entryOf(n, level); entry == nil {
				break
			}
			n = entry.Value
		}
		if entry != nil {
			return entry, true
		}
	}
	return nil, false
}
