package mcpclients

import (
	"bytes"
	"encoding/json"
	"strings"
)

// A table is the position of a TOML table: from its header to the next.
type table struct {
	name     string // its keys, with dots
	from, to int
}

// tables returns the tables of a text, in order. Lines of multi-line strings are not headers. The error reports an unterminated string.
func tables(text []byte) (all []table, err error) {
	at, quote := 0, ""
	for line := range bytes.Lines(text) {
		words := strings.TrimSpace(string(line))
		if quote == "" && strings.HasPrefix(words, "[") {
			if end := strings.LastIndexByte(words, ']'); end > 0 && headerEnd(words[end+1:]) {
				if n := len(all); n > 0 {
					all[n-1].to = at
				}
				all = append(all, table{keys(strings.Trim(words[:end+1], "[]")), at, len(text)})
			}
		}
		for _, mark := range []string{`"""`, "'''"} {
			if (quote == "" || quote == mark) && strings.Count(words, mark)%2 == 1 {
				if quote == "" {
					quote = mark
				} else {
					quote = ""
				}
			}
		}
		at += len(line)
	}
	if quote != "" {
		return nil, broken("a text in " + quote + " does not end")
	}
	return all, nil
}

func headerEnd(rest string) bool {
	rest = strings.TrimSpace(rest)
	return rest == "" || strings.HasPrefix(rest, "#")
}

// keys returns a name of a table in normal form.
func keys(name string) string {
	parts := strings.Split(name, ".")
	for i, p := range parts {
		parts[i] = strings.Trim(strings.TrimSpace(p), `"'`)
	}
	return strings.Join(parts, ".")
}

// addTable writes the table of a server, in place of one of the same name.
func addTable(text []byte, section string, s Server) ([]byte, error) {
	args := make([]string, len(s.Args))
	for i, a := range s.Args {
		args[i] = basic(a)
	}
	entry := "[" + section + "." + key(s.Name) + "]\ncommand = " + basic(s.Command) + "\nargs = [" + strings.Join(args, ", ") + "]\n"
	all, err := tables(text)
	if err != nil {
		return nil, err
	}
	for _, t := range all {
		if t.name == section+"."+s.Name {
			end := t.from + len(bytes.TrimRight(text[t.from:t.to], " \t\r\n")) + 1
			return splice(text, t.from, min(end, t.to), entry), nil
		}
	}
	for line := range bytes.Lines(text) {
		if name, _, ok := bytes.Cut(line, []byte("=")); ok && strings.TrimSpace(string(name)) == section {
			return nil, broken(section + " is on one line; make tables of it: [" + section + ".name]")
		}
	}
	out := append([]byte{}, text...)
	if len(out) > 0 && !bytes.HasSuffix(out, []byte("\n")) {
		out = append(out, '\n')
	}
	if len(out) > 0 {
		out = append(out, '\n')
	}
	return append(out, entry...), nil
}

// removeTable removes the table of a server, and its subtables.
func removeTable(text []byte, section, name string) ([]byte, error) {
	all, err := tables(text)
	if err != nil {
		return nil, err
	}
	for i := len(all) - 1; i >= 0; i-- {
		if t := all[i]; t.name == section+"."+name || strings.HasPrefix(t.name, section+"."+name+".") {
			from, to := t.from, min(t.to, len(text))
			if to == len(text) { // remove the line in between, too
				from = len(bytes.TrimRight(text[:t.from], "\r\n"))
				from = min(from+1, t.from)
			}
			text = splice(text, from, to, "")
		}
	}
	return text, nil
}

// basic returns a TOML string; TOML has the escapes of JSON.
func basic(s string) string {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // strings always encode
	return strings.TrimSpace(out.String())
}

// key returns a key, quoted if necessary.
func key(name string) string {
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == "" && name != "" {
		return name
	}
	return basic(name)
}
