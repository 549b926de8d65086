package web

import (
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	tableKey   = regexp.MustCompile(`(?m)^  ('(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"): '`)
	literal    = regexp.MustCompile("'(?:[^'\\\\\n]|\\\\.)*'|\"(?:[^\"\\\\\n]|\\\\.)*\"")
	translated = regexp.MustCompile(`\bt\(`)
	numbered   = regexp.MustCompile(`(\w+): num\(`)
	compared   = regexp.MustCompile(`[=!]==? *('[^']*')|\[ *('[^']*') *\]`)
)

// firstArgument returns the text up to the comma or the parenthesis that ends the first argument of a call; "" without one.
func firstArgument(text string) string {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\'', '"':
			at := literal.FindStringIndex(text[i:])
			if at == nil || at[0] != 0 {
				return ""
			}
			i += at[1] - 1
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			if depth--; depth < 0 {
				return text[:i]
			}
		case ',':
			if depth == 0 {
				return text[:i]
			}
		}
	}
	return ""
}

// ownScripts returns the modules of the page that are written here, by name.
func ownScripts(t *testing.T) map[string]string {
	t.Helper()
	scripts := map[string]string{}
	err := fs.WalkDir(embedded, "ui", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && d.Name() == "vendor" {
			if err == nil {
				err = fs.SkipDir
			}
			return err
		}
		if path.Ext(name) == ".js" {
			raw, err := fs.ReadFile(embedded, name)
			scripts[strings.TrimPrefix(name, "ui/")] = string(raw)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return scripts
}

// TestWords checks that the table of words has each text of the page, and no other.
func TestWords(t *testing.T) {
	t.Parallel()
	scripts := ownScripts(t)
	_, table, _ := strings.Cut(scripts["texts.js"], "export const WORDS = {")
	table, _, found := strings.Cut(table, "\n};")
	if !found {
		t.Fatal("texts.js has no table WORDS")
	}
	delete(scripts, "texts.js")
	inTable := map[string]bool{}
	for _, m := range tableKey.FindAllStringSubmatch(table, -1) {
		key := m[1][1 : len(m[1])-1]
		if inTable[key] {
			t.Errorf("%q is in the table twice", key)
		}
		inTable[key] = true
	}
	if len(inTable) < 40 {
		t.Fatalf("%d texts in the table", len(inTable))
	}
	written := map[string]bool{}
	for name, text := range scripts {
		for _, l := range literal.FindAllString(text, -1) {
			written[l[1:len(l)-1]] = true
		}
		var missing []string
		for _, at := range translated.FindAllStringIndex(text, -1) {
			for _, l := range literal.FindAllString(compared.ReplaceAllString(firstArgument(text[at[1]:]), ""), -1) {
				if key := l[1 : len(l)-1]; !inTable[key] {
					missing = append(missing, l)
				}
			}
		}
		slices.Sort(missing)
		for _, l := range slices.Compact(missing) {
			t.Errorf("%s: %s is not in the table WORDS of texts.js", name, l)
		}
	}
	for key := range inTable {
		if !written[key] {
			t.Errorf("%q is in the table, but no module has it", key)
		}
	}
}

// counts finds a number next to a word that is right for one count only, which plural in words.js prints for all. A text has its numbers
// from params.
func counts(script string, texts []string, params map[string]bool) (found []string) {
	found = counted.FindAllString(script, -1)
	for _, text := range texts {
		for _, m := range placed.FindAllStringSubmatch(text, -1) {
			if params[m[1]] && m[2] != "this" {
				found = append(found, text)
			}
		}
	}
	return found
}

var (
	counted = regexp.MustCompile(`\$\{(?:num\([^{}]*\)|n|[\w.?]+\.(?:length|count|total))\} [a-z]{2,}(?:[^\w=-]|$)`)
	placed  = regexp.MustCompile(`\{(\w+)\}(?: \{?\w+\}?){0,2}? (are|were|\w{3,}s)\b`)
)

// TestCounts checks that counts have singular and plural from one function.
func TestCounts(t *testing.T) {
	t.Parallel()
	scripts := ownScripts(t)
	var texts []string
	for _, m := range tableKey.FindAllStringSubmatch(scripts["texts.js"], -1) {
		texts = append(texts, m[1])
	}
	params := map[string]bool{}
	for _, text := range scripts {
		for _, m := range numbered.FindAllStringSubmatch(text, -1) {
			params[m[1]] = true
		}
	}
	if !params["n"] || len(texts) < 40 {
		t.Fatalf("%d texts, %v", len(texts), params)
	}
	for name, script := range scripts {
		for _, found := range counts(script, nil, nil) {
			t.Errorf("%s: %s: use plural of words.js", name, found)
		}
	}
	for _, found := range counts("", texts, params) {
		t.Errorf("%s: pass plural(…) of words.js in place of num(…)", found)
	}
	for _, wrong := range []string{"${num(list.length)} agents", "${n} peers", "${items.length} of"} {
		if len(counts(wrong, nil, nil)) != 1 {
			t.Errorf("%s is not found", wrong)
		}
	}
	for _, wrong := range []string{"{n} agents", "{n} are hidden", "{n} of {total} fields", "The first {n} parts", "at least {n} more entries"} {
		if len(counts("", []string{wrong}, params)) != 1 {
			t.Errorf("%s is not found", wrong)
		}
	}
}
