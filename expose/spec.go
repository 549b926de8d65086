package expose

import (
	"flag"
	"io"
	"strings"

	"github.com/lmosd/lmosd/interact"
)

// ForUsage is the usage of the flag for callers.
const ForUsage = "`WHO` may find and call it, a caller of access rules or anyone; may repeat"

// Flags defines the settings of a Spec as flags: text adds a flag with a value, list a flag that may repeat, flag one without a value.
func Flags(s *Spec, text func(to *string, name, usage string), list func(to *[]string, name, usage string),
	flag func(to *bool, name, usage string)) {
	text(&s.Name, "name", "the name of the agent")
	text(&s.Description, "description", "a description of one sentence")
	list(&s.Capabilities, "capability", "`ID` under which others find it; may repeat")
	list(&s.For, "for", ForUsage)
	list(&s.Actions, "action", "`NAME` of an action, in $LMOSD_ACTION of the command (default: run); may repeat")
	list(&s.Inputs, "input", "`NAME:TYPE`, ACTION.NAME:TYPE; optional: TYPE? or =VALUE")
	text(&s.Delimiter, "delimiter", `the end of a part of the output, such as '\n': each part is sent at once`)
	text(&s.Dir, "dir", "`DIR` in which a command runs")
	list(&s.Env, "env", "`NAME` or NAME=value: another variable of an MCP server; may repeat")
	text(&s.Approvals, "approvals", "`FILE` of the approved tools of an MCP server")
	flag(&s.Approve, "approve", "approve the changed tools of an MCP server")
	flag(&s.PublishPrivate, "publish-private", "publish an MCP server that declares its lists private")
	text(&s.Key, "key", "`FILE` of a key that owns the agent, which can move")
	flag(&s.OwnKey, "own-key", "make such a key: agents/NAME.pem of the data folder")
	list(&s.Roles, "role", "`ROLE` of the node in calls of an agent with a key; may repeat")
	text(&s.Visibility, "visibility", "`AUDIENCE` with a key: public, partners, organization")
	text(&s.Server, "server", "`URL` of the server of an OpenAPI document")
}

// ParseLine reads a Spec from a line with a target and flags, as `lmosd expose` accepts them. The line is split into words as in a shell,
// with quotes and backslashes, but without expansions. The error is an [*interact.Error] of code ConfigInvalid.
func ParseLine(line string) (Spec, error) {
	words, ok := split(line)
	if !ok {
		return Spec{}, interact.Errorf(interact.ConfigInvalid, "close the quote", "a quote is not closed in %s", line)
	}
	var s Spec
	fs := flag.NewFlagSet("agents", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	Flags(&s, func(to *string, name, usage string) { fs.StringVar(to, name, "", usage) },
		func(to *[]string, name, usage string) {
			fs.Func(name, usage, func(v string) error { *to = append(*to, v); return nil })
		}, func(to *bool, name, usage string) { fs.BoolVar(to, name, false, usage) })
	for len(words) > 0 {
		if s.Target == "" && !strings.HasPrefix(words[0], "-") {
			s.Target, words = words[0], words[1:]
			continue
		}
		if err := fs.Parse(words); err != nil || len(fs.Args()) == len(words) {
			return Spec{}, lineError(line, err)
		}
		words = fs.Args()
	}
	if s.Target == "" {
		return Spec{}, lineError(line, nil)
	}
	return s, nil
}

func lineError(line string, err error) error {
	return &interact.Error{Code: interact.ConfigInvalid, Title: "expected a target with flags, got: " + line, Err: err,
		Hint: "use the arguments of expose", Next: interact.Next(interact.StepExpose, "exec:./weather.sh --fast", "name", "weather")}
}

// unescape replaces \n, \t, \0 and \\, which few shells can express.
func unescape(text string) string {
	return strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\t`, "\t", `\0`, "\x00").Replace(text)
}

// split splits a line into words (POSIX Shell Command Language §2.2): single quotes quote everything; between double quotes a backslash
// escapes a quote and itself. It reports whether the line is complete.
func split(line string) (words []string, ok bool) {
	var word strings.Builder
	var quote rune
	inWord, escaped := false, false
	for _, r := range line {
		switch {
		case escaped:
			if quote == '"' && r != '"' && r != '\\' {
				word.WriteByte('\\')
			}
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			escaped, inWord = true, true
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case strings.ContainsRune(" \t\r\n", r):
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, quote == 0 && !escaped
}
