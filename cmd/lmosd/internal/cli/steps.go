package cli

import (
	"slices"
	"strings"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
)

// A verb is the command of a step.
type verb struct {
	name  string
	named int    // arguments that stand alone
	blank string // stands for the last of them if it is missing
	each  string // precedes each further argument; empty: they are names and values of flags, in turn
}

var verbs = map[interact.StepKind]verb{
	interact.StepShow:     {"show", 1, "", ""},
	interact.StepFind:     {"find", 1, "", ""},
	interact.StepRead:     {"read", 2, "", ""},
	interact.StepWrite:    {"write", 3, "VALUE", ""},
	interact.StepTasks:    {"task ls", 0, "", ""},
	interact.StepStatus:   {"status", 0, "", "--node"},
	interact.StepRun:      {"run", 0, "", ""},
	interact.StepConfig:   {"config describe", 0, "", ">"},
	interact.StepID:       {"id", 0, "", ""},
	interact.StepPeers:    {"peers", 0, "", ""},
	interact.StepConnect:  {"peers connect", 1, "ADDR", ""},
	interact.StepExpose:   {"expose", 1, "TARGET", ""},
	interact.StepPublish:  {"publish", 1, "FILE", ""},
	interact.StepValidate: {"validate", 1, "FILE", ""},
	interact.StepLogin:    {"login", 1, "", "--scope"},
	interact.StepHelp:     {"help", 1, "", ""},
}

// Advice returns a hint with its steps as commands. They act on the node of this command as far as they are for that node; remote is the
// advice of another node.
func (c *Console) Advice(hint string, next []interact.Step, remote bool) string {
	var commands []string
	for _, s := range next {
		if text := c.command(s, remote); text != "" {
			commands = append(commands, text)
		}
	}
	if hint != "" && len(commands) > 0 {
		hint += ": "
	}
	return hint + strings.Join(commands, ", or ")
}

// command returns the command of a step; "" if there is none. Other nodes do not choose what runs on this host.
func (c *Console) command(s interact.Step, remote bool) string {
	args := make([]string, len(s.Args))
	for i, arg := range s.Args {
		args[i] = terminal.Shell(arg)
	}
	v, known := verbs[s.Kind]
	switch {
	case s.Kind == interact.StepUse:
		return strings.Join(args, ", ")
	case s.Kind == interact.StepOption && len(args) > 0:
		return "--" + strings.Join(args, " ")
	case !known || remote && (s.Kind == interact.StepRun || s.Kind == interact.StepExpose):
		return ""
	}
	named := args[:min(len(args), v.named)]
	text := v.name
	if slices.ContainsFunc(named, func(arg string) bool { return strings.HasPrefix(arg, "-") }) {
		text += " --"
	}
	text = strings.Join(append([]string{text}, named...), " ")
	if len(named) < v.named && v.blank != "" {
		text += " " + v.blank
	}
	for i, arg := range args[len(named):] {
		switch {
		case v.each != "":
			text += " " + v.each
		case i%2 == 0:
			arg = "--" + arg
		}
		text += " " + arg
	}
	if c.Flagged == nil || strings.Contains(text, " --node ") || strings.Contains(text, " --data-dir ") {
		return "lmosd " + text
	}
	name, _, _ := strings.Cut(text, " ")
	return "lmosd" + c.Flagged(name, remote) + " " + text
}
