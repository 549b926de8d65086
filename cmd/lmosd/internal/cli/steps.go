package cli

import (
	"slices"
	"strings"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
)

// StepCommand is a step of this program: a command line of lmosd, quoted for a shell, which may end with a comment. Errors of other
// programs have no such steps ([interact.KnownSteps]).
const StepCommand interact.StepKind = "command"

// StepRetype is a step of this program: the command line that was typed, with changes. The arguments are pairs of a word and its
// replacement; an empty one removes the word, and a replacement of a flag that ends with "=" takes the next word as its value.
const StepRetype interact.StepKind = "retype"

// maxRetyped limits a command line that is printed again, in bytes.
const maxRetyped = 400

// retype returns the command line with the changes of a [StepRetype]; "" if the line does not contain each word, or is too long. A word is an
// argument, the name of a flag or the value of one.
func (c *Console) retype(changes []string) string {
	words := slices.Clone(c.Args)
	for ; len(changes) > 1; changes = changes[2:] {
		var found bool
		if words, found = replaced(words, changes[0], changes[1]); !found {
			return ""
		}
	}
	for i, word := range words {
		words[i] = terminal.Shell(word)
	}
	if line := strings.Join(append([]string{"lmosd"}, words...), " "); len(line) <= maxRetyped {
		return line
	}
	return ""
}

// replaced returns words with right in place of the first word, and whether there is one.
func replaced(words []string, word, right string) ([]string, bool) {
	for i, arg := range words {
		name, value, joined := strings.Cut(arg, "=")
		now := []string{right}
		to := i + 1
		switch {
		case arg == word && right == "":
			now = nil
		case arg == word && strings.HasPrefix(word, "-") && strings.HasSuffix(right, "=") && to < len(words):
			now[0] += words[to]
			to++
		case arg == word:
		case joined && name == word && strings.HasPrefix(word, "-"):
			now[0] = strings.TrimSuffix(right, "=") + "=" + value
		case joined && value == word && strings.HasPrefix(name, "-"):
			now[0] = name + "=" + right
		case strings.HasPrefix(arg, "-o") && arg[2:] == word:
			now[0] = "-o" + right
		default:
			continue
		}
		return slices.Concat(words[:i], now, words[to:]), true
	}
	return words, false
}

// A verb is the command of a step.
type verb struct {
	name  string
	named int    // number of positional arguments
	blank string // placeholder for the last positional argument
	each  string // precedes each further argument; empty: they are names and values of flags, in turn
}

// remoteOptions are the options that a step of another node may name: none selects a node, a file or a folder.
var remoteOptions = []string{"async", "limit", "stream", "timeout"}

// ownSteps are the steps that another node must not give: they start a program, or change what this node accepts.
var ownSteps = []interact.StepKind{interact.StepRun, interact.StepExpose, interact.StepPolicy, interact.StepSet}

var verbs = map[interact.StepKind]verb{
	interact.StepShow:     {"show", 1, "", ""},
	interact.StepFind:     {"find", 1, "", ""},
	interact.StepRead:     {"read", 2, "", ""},
	interact.StepWrite:    {"write", 3, "VALUE", ""},
	interact.StepTasks:    {"task ls", 0, "", ""},
	interact.StepStatus:   {"status", 0, "", "--node"},
	interact.StepRun:      {"run", 0, "", ""},
	interact.StepConfig:   {"config describe", 0, "", ">"},
	interact.StepSet:      {"config set", 2, "VALUE", ""},
	interact.StepMigrate:  {"config migrate", 0, "", ""},
	interact.StepID:       {"id", 0, "", ""},
	interact.StepPeers:    {"peers", 0, "", ""},
	interact.StepConnect:  {"peers connect", 1, "ADDR", ""},
	interact.StepExpose:   {"expose", 1, "TARGET", ""},
	interact.StepPublish:  {"publish", 1, "FILE", ""},
	interact.StepValidate: {"validate", 1, "FILE", ""},
	interact.StepLogin:    {"login", 1, "", "--scope"},
	interact.StepPolicy:   {"policy", 2, "", ""},
	interact.StepHelp:     {"help", 1, "", ""},
	interact.StepOrgInit:  {"org init", 1, "DOMAIN", ""},
	interact.StepOrgJoin:  {"org join", 1, "INVITATION", ""},
	interact.StepOrgLeave: {"org leave", 0, "", ""},
	interact.StepAccept:   {"trust accept", 1, "INVITATION", ""},
	interact.StepConfirm:  {"trust confirm", 1, "PARTNER", ""},
	interact.StepHosting:  {"hosting", 2, "", ""},
	interact.StepConsole:  {"console", 0, "", ""},
}

// Advice returns a hint with its steps as commands, which act on the node of this command if they are for that node. A remote hint comes
// from another node.
func (c *Console) Advice(hint string, next []interact.Step, remote bool) string {
	var commands []string
	for _, s := range next {
		if text := c.command(s, remote); text != "" {
			commands = append(commands, text)
		}
	}
	switch {
	case hint == "" || len(commands) == 0:
	case strings.HasSuffix(hint, "?"):
		hint += " "
	default:
		hint += ": "
	}
	return hint + strings.Join(commands, ", or ")
}

// command returns the command of a step; "" if there is none. A remote step chooses no program, file, folder or node: of its arguments
// only the positional ones are shown, and the scopes of a login.
func (c *Console) command(s interact.Step, remote bool) string {
	args := make([]string, len(s.Args))
	for i, arg := range s.Args {
		args[i] = terminal.Shell(arg)
	}
	v, known := verbs[s.Kind]
	isFlag := func(arg string) bool { return strings.HasPrefix(arg, "-") }
	switch {
	case s.Kind == StepCommand:
		return c.flagged(strings.TrimPrefix(s.Args[0], "lmosd "), false)
	case s.Kind == StepRetype:
		return c.retype(s.Args)
	case s.Kind == interact.StepUse:
		return strings.Join(args, ", ")
	case s.Kind == interact.StepOption && len(args) > 0:
		if remote && (!slices.Contains(remoteOptions, s.Args[0]) || len(args) > 2 || slices.ContainsFunc(s.Args, isFlag)) {
			return ""
		}
		return "--" + strings.Join(args, " ")
	case !known || remote && slices.Contains(ownSteps, s.Kind):
		return ""
	}
	named, rest := args[:min(len(args), v.named)], args[min(len(args), v.named):]
	if remote && s.Kind != interact.StepLogin {
		rest = nil
	}
	positional := strings.Join(append([]string{""}, named...), " ")
	if len(named) < v.named && v.blank != "" {
		positional += " " + v.blank
	}
	options := ""
	for i, arg := range rest {
		switch {
		case v.each != "":
			options += " " + v.each
		case i%2 == 0:
			arg = "--" + arg
		}
		options += " " + arg
	}
	text := v.name + positional + options
	if slices.ContainsFunc(named, isFlag) {
		text = v.name + options + " --" + positional // options end at --
	}
	if !remote && (s.Kind == interact.StepSet || s.Kind == interact.StepMigrate) {
		text += c.Settings()
	}
	return c.flagged(text, remote)
}

// flagged returns a command with the flags of [Console.Flagged], unless it has one of them.
func (c *Console) flagged(text string, remote bool) string {
	if c.Flagged == nil || strings.Contains(text, " --node ") || strings.Contains(text, " --data-dir ") {
		return "lmosd " + text
	}
	name, _, _ := strings.Cut(text, " ")
	return "lmosd" + c.Flagged(name, remote) + " " + text
}
