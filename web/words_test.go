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
