package configs

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/internal/lazyregexp"
)

// source is the file that declares Config; its comments are the documentation of the keys.
//
//go:embed config.go
var source string

// fieldDocs returns the comments of struct fields by "Type.Field", and of types by "Type.", each on one line.
func fieldDocs() map[string]string {
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		panic("configs: config.go, which was compiled, cannot be parsed: " + err.Error())
	}
	docs := map[string]string{}
	for _, d := range file.Decls {
		gen, ok := d.(*ast.GenDecl)
		if !ok || gen.Tok != token.TYPE {
			continue
		}
		for _, spec := range gen.Specs {
			addDocs(docs, gen.Doc, spec.(*ast.TypeSpec))
		}
	}
	return docs
}

func addDocs(docs map[string]string, doc *ast.CommentGroup, t *ast.TypeSpec) {
	docs[t.Name.Name+"."] = oneLine(doc)
	s, ok := t.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, f := range s.Fields.List {
		for _, name := range f.Names {
			docs[t.Name.Name+"."+name.Name] = oneLine(f.Doc)
		}
	}
}

func oneLine(g *ast.CommentGroup) string { return strings.Join(strings.Fields(g.Text()), " ") }

// Describe returns a file with every key at its default, and its documentation. Loading it results in the defaults.
func Describe() []byte {
	docs := fieldDocs()
	var b strings.Builder
	b.WriteString(schemaLine + "\n")
	b.WriteString("# The configuration of lmosd. Every key is optional; here each has its default.\n")
	b.WriteString("# A key may also be a flag (--http.listen) or a variable (LMOSD_HTTP__LISTEN).\n\n")
	Default().write(&b, func(f field) (above, behind string) {
		text := docs[f.owner.Name()+"."+f.field.Name]
		if v := f.values(); len(v) > 1 {
			text += " Values: " + strings.Join(v, ", ") + "."
		}
		return text, ""
	})
	return []byte(b.String())
}

// YAML returns c as a file. With origins, a comment after each key has the origin of its value.
func (c *Config) YAML(origins bool) []byte {
	var b strings.Builder
	c.write(&b, func(f field) (above, behind string) {
		if origins {
			behind = "from " + c.Origin(f.key)
		}
		return "", behind
	})
	return []byte(b.String())
}

// write writes every key; comment returns the comments above and after it.
func (c *Config) write(b *strings.Builder, comment func(field) (above, behind string)) {
	var open []string // the sections of the last key
	for f := range c.fields() {
		levels := strings.Split(f.key, ".")
		sections := levels[:len(levels)-1]
		for i := range sections {
			if i >= len(open) || open[i] != sections[i] {
				fmt.Fprintf(b, "%s%s:\n", indent(i), sections[i])
				open = append(open[:min(i, len(open))], sections[i])
			}
		}
		open = open[:len(sections)]
		above, behind := comment(f)
		at := indent(len(sections))
		for _, line := range wrap(above, 100) {
			fmt.Fprintf(b, "%s# %s\n", at, line)
		}
		if behind != "" {
			behind = "  # " + behind
		}
		fmt.Fprintf(b, "%s%s: %s%s\n", at, levels[len(levels)-1], f.yaml(), behind)
	}
}

func indent(level int) string { return strings.Repeat("  ", level) }

// wrap breaks text at spaces into lines of at most width bytes.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// yaml returns the YAML form of the value.
func (f field) yaml() string {
	switch f.kind() {
	case "list":
		return quoteAll(f.texts())
	case "string":
		return quote(f.texts()[0])
	}
	return f.texts()[0]
}

func quoteAll(list []string) string {
	all := make([]string, len(list))
	for i, s := range list {
		all[i] = quoted(s)
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// plain matches strings that YAML reads as strings without quotes, unless the list contains them.
var plain = lazyregexp.New(`^[A-Za-z][A-Za-z0-9_./-]*$`)

var notStrings = []string{"true", "false", "yes", "no", "on", "off", "null", "y", "n"}

func quote(s string) string {
	if plain().MatchString(s) && !slices.Contains(notStrings, strings.ToLower(s)) {
		return s
	}
	return quoted(s)
}

// quoted returns s in double quotes. JSON strings are YAML (YAML 1.2 §1.2).
func quoted(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(err) // strings always encode
	}
	return strings.TrimSuffix(b.String(), "\n")
}
