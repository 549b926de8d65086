package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
)

// aliases are other names of commands, which work at once. They are replaced before the tree is made, which has only the commands that a
// command line names (see needed). A word with several meanings is a mistake, see mistakes.
var aliases = map[string]string{
	"agents": "find", "discover": "find", "list": "find", "ls": "find", "lookup": "find", "ps": "find", "query": "find", "search": "find",
	"describe": "show", "inspect": "show",
	"execute": "call", "invoke": "call",
	"observe": "watch", "sub": "watch", "subscribe": "watch",
	"connect": "peers connect", "dial": "peers connect", "members": "peers", "nodes": "peers", "peer": "peers",
	"job": "task", "jobs": "task ls", "tasks": "task ls",
	"daemon": "run", "start": "run",
	"advertise": "publish", "announce": "publish",
	"deregister": "unpublish", "unregister": "unpublish", "withdraw": "unpublish",
	"dashboard": "console", "gui": "console", "ui": "console", "web": "console",
	"health": "status", "state": "status", "whoami": "id", "identity": "id",
	"cfg": "config", "ctx": "context", "contexts": "context", "setting": "config", "settings": "config", "key": "keys", "error": "errors", "log": "logs", "network": "net",
	"bridge": "bridges", "event": "events", "groups": "group", "tokens": "token", "policies": "policy",
	"ver": "version",
}

// flagAliases are other names of global flags, before or after the command.
var flagAliases = map[string][]string{
	"--json": {"--output", "json"}, "-j": {"--output", "json"}, "--jsonl": {"--output", "jsonl"}, "--yaml": {"--output", "yaml"},
	"--wide": {"--output", "wide"},
}

// valued are the global flags with a value in the next argument.
var valued = []string{"-c", "--config", "--data-dir", "--node", "-o", "--output", "--jq"}

// commandAt returns the index of the command in args, after global flags; len(args) if there is none.
func commandAt(args []string) int {
	for i := 0; i < len(args); i++ {
		switch {
		case slices.Contains(valued, args[i]):
			i++
		case !strings.HasPrefix(args[i], "-") || args[i] == "--":
			return i
		}
	}
	return len(args)
}

// meant returns args with the names that the tree has.
func meant(args []string) []string {
	if len(args) > 0 && strings.HasPrefix(args[0], "__complete") {
		return args
	}
	var words []string
	for i, arg := range args {
		if arg == "--" {
			words = append(words, args[i:]...)
			break
		}
		if flags := flagAliases[arg]; flags != nil {
			words = append(words, flags...)
			continue
		}
		words = append(words, arg)
	}
	at := commandAt(words)
	if at == len(words) {
		if i := slices.IndexFunc(words, func(w string) bool { return w == "--version" || w == "-V" }); i >= 0 {
			words[i] = "version"
		}
		return words
	}
	if words[at] == "help" && at+1 < len(words) {
		at++
	}
	if right := aliases[words[at]]; right != "" {
		return slices.Concat(words[:at], strings.Fields(right), words[at+1:])
	}
	return words
}

// A mistake is a word that people type as a command and that has several meanings here: the arguments decide which. An empty command is
// none; the other arguments are appended to it, except to alone.
type mistake struct {
	text       string // before the command alone
	alone      string // without arguments
	agent      string // with one argument; other, with more
	other      string
	address    string // with a multiaddr
	invitation string
	target     string // of lmosd expose
	file       string
}

// mistakes are the words with several meanings. Each command works as it is written.
var mistakes = map[string]mistake{
	"add":        {alone: "expose --help", agent: "show", address: "peers connect", invitation: "org join", target: "expose", file: "publish"},
	"ask":        {alone: "route --help", agent: "route", other: "route"},
	"cancel":     {alone: "task ls", agent: "task cancel"},
	"check":      {alone: "doctor", agent: "show", file: "validate"},
	"delete":     {text: "select what to remove", alone: "unpublish --help", agent: "unpublish"},
	"deny":       {alone: "policy ls", agent: "policy deny"},
	"allow":      {alone: "policy ls", agent: "policy allow", other: "policy allow"},
	"deploy":     {alone: "expose --help", target: "expose", file: "publish"},
	"disconnect": {text: "a node keeps its connections; it rejects a peer by rule", alone: "policy deny --help"},
	"down":       {text: "a node ends with Ctrl-C in its terminal, a test network with", alone: "testnet down --help"},
	"exec":       {text: "to call an action of an agent", alone: "call --help", agent: "show", other: "call", target: "expose"},
	"exit":       {text: "a node ends with Ctrl-C in its terminal; see whether one runs", alone: "status"},
	"get":        {alone: "find", agent: "show", other: "read"},
	"info":       {alone: "status", agent: "show"},
	"init":       {text: "a node needs no preparation", alone: "run --help", agent: "org init"},
	"invite":     {text: "for a node of the own organization", alone: "org invite --help"},
	"join":       {text: "with an invitation", alone: "org join --help", agent: "group join", address: "peers connect", invitation: "org join"},
	"kill":       {text: "a node ends with Ctrl-C in its terminal; see whether one runs", alone: "status", agent: "task cancel"},
	"leave":      {text: "to leave an organization", alone: "org leave --help", agent: "group leave"},
	"listen":     {alone: "events --help", agent: "watch", other: "watch"},
	"agent":      {alone: "find", agent: "show"},
	"node":       {alone: "status"},
	"open":       {alone: "console", agent: "show"},
	"quit":       {text: "a node ends with Ctrl-C in its terminal; see whether one runs", alone: "status"},
	"register":   {alone: "publish --help", target: "expose", file: "publish"},
	"remove":     {text: "select what to remove", alone: "unpublish --help", agent: "unpublish"},
	"restart":    {text: "press Ctrl-C in its terminal, and start it again", alone: "run --help"},
	"rm":         {text: "select what to remove", alone: "unpublish --help", agent: "unpublish"},
	"send":       {text: "to call an action of an agent", alone: "call --help", agent: "show", other: "call"},
	"serve":      {alone: "run --help", target: "expose", file: "publish"},
	"set":        {alone: "config describe", agent: "config get", other: "write"},
	"share":      {alone: "expose --help", target: "expose", file: "publish"},
	"stop":       {text: "a node ends with Ctrl-C in its terminal; see whether one runs", alone: "status", agent: "unpublish"},
	"tail":       {alone: "logs", agent: "watch", other: "watch"},
	"test":       {alone: "doctor", agent: "ping", file: "validate"},
	"tools":      {alone: "find --type tool"},
	"up":         {text: "to start a node", alone: "run --help"},
	"update":     {alone: "version", file: "publish"},
	"import":     {alone: "expose --help", target: "expose", file: "publish"},
	"whois":      {alone: "id", agent: "id"},
}

// command returns the command line that a mistake with args means, without the name of the program.
func (m mistake) command(args []string) string {
	line := m.alone
	if len(args) == 0 {
		return line
	}
	candidates := []string{m.agent}
	switch first := args[0]; {
	case strings.HasPrefix(first, "/") && strings.Contains(first, "/p2p/"):
		candidates = []string{m.address}
	case strings.HasPrefix(first, "lmos-invite:"):
		candidates = []string{m.invitation}
	case hasScheme(first):
		candidates = []string{m.target}
	case strings.HasSuffix(first, ".json") || strings.HasSuffix(first, ".yaml") || strings.Contains(first, "/"):
		candidates = []string{m.file}
	case len(args) > 1:
		candidates = []string{m.other, m.agent}
	}
	for _, command := range candidates {
		if command == "" {
			continue
		}
		words := []string{command}
		for _, arg := range args {
			words = append(words, terminal.Shell(arg))
		}
		return strings.Join(words, " ")
	}
	return line
}

// hasScheme reports whether text is a target of lmosd expose: a URL, or a command or document with its scheme.
func hasScheme(text string) bool {
	scheme, _, found := strings.Cut(text, ":")
	return found && slices.Contains([]string{"exec", "mcp", "a2a", "openapi", "http", "https"}, scheme)
}

// lookupTime is the time in which a node must say whether a word is one of its agents.
const lookupTime = time.Second

// unknownCommand checks the arguments of the root, which has only subcommands: the error has a command that works.
func (a *app) unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	e := cli.Usage("", "lmosd has no command %q", args[0])
	if m, ok := mistakes[args[0]]; ok {
		command := m.command(args[1:])
		if command == m.alone {
			e.Hint = m.text
		}
		return e.Then(cli.StepCommand, "lmosd "+command)
	}
	if hasScheme(args[0]) {
		return e.Then(cli.StepCommand, "lmosd expose "+terminal.Shell(args[0]))
	}
	if args[0] == "lmosd" {
		return e.Then(cli.StepRetype, "lmosd", "")
	}
	names := cli.Subcommands(cmd)
	if cli.Nearest(args[0], names) == "" {
		if line := a.agentLine(cmd.Context(), args); line != "" {
			e.Hint = "it is an agent"
			return e.Then(cli.StepCommand, line)
		}
	}
	return cli.Similar(e, args[0], names, "lmosd --help")
}

// noArguments checks the arguments of lmosd run, which has none: people expect that it calls an agent, or runs a command.
func (a *app) noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	e := cli.Usage("", "lmosd run starts a node and takes no argument %q", args[0])
	if hasScheme(args[0]) {
		return e.Then(cli.StepCommand, "lmosd expose "+terminal.Shell(args[0]))
	}
	return e.Then(cli.StepCommand, cmp.Or(a.agentLine(cmd.Context(), args), "lmosd run"))
}

// agentLine returns the command line for an agent that is named in place of a command, or "".
func (a *app) agentLine(ctx context.Context, args []string) string {
	ref, rest := args[0], args[1:]
	for _, separator := range []string{"/", "."} { // weather/getWeather
		if name, action, found := strings.Cut(ref, separator); found && name != "" && action != "" && a.agentNow(ctx, name) != nil {
			ref, rest = name, append([]string{action}, rest...)
			break
		}
	}
	g := a.agentNow(ctx, ref)
	switch {
	case g == nil:
		return ""
	case len(rest) > 0 && slices.Contains(g.Actions, rest[0]):
		return callLine(ref, rest)
	case len(rest) > 0 && slices.Contains(g.Properties, rest[0]):
		return "lmosd read " + terminal.Shell(ref) + " " + terminal.Shell(rest[0])
	}
	return "lmosd show " + terminal.Shell(ref)
}

// agentNow returns the agent with the name ref if the node answers quickly, else nil.
func (a *app) agentNow(ctx context.Context, ref string) *api.Agent {
	client, err := a.client()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	detail, err := client.Agent(ctx, ref)
	if err != nil {
		return nil
	}
	return &detail.Agent
}

// callLine returns the command line that calls an action with words.
func callLine(ref string, words []string) string {
	line := "lmosd call " + terminal.Shell(ref)
	for _, word := range words {
		line += " " + terminal.Shell(word)
	}
	return line
}

// splitCall returns the error for a call with one argument, which should be two: weather.getWeather, weather/getWeather or
// "weather getWeather"; nil if it is not of these.
func splitCall(arg string) error {
	if strings.Contains(arg, "://") {
		return cli.Usage("a web server becomes an agent by", "lmosd call needs the name of an agent and an action").
			Then(cli.StepCommand, "lmosd expose "+terminal.Shell(arg))
	}
	i := strings.LastIndexAny(arg, " ./")
	if i <= 0 || i == len(arg)-1 || strings.HasPrefix(arg, "/") {
		return nil
	}
	return cli.Usage("write two words", "lmosd call needs the agent and the action as two arguments, got %q", arg).
		Then(cli.StepCommand, callLine(strings.TrimSpace(arg[:i]), []string{arg[i+1:]}))
}

// swapped adds a hint to an error about an unknown agent: if the next argument is an agent and this one its action, the order is wrong; a
// web server is no agent before it is exposed; quotes are no part of a name.
func (a *app) swapped(ctx context.Context, err error, verb string, args []string) error {
	e := interact.AsError(err)
	if e == nil || e.Code != interact.NotFound {
		return err
	}
	better := *e
	if strings.HasPrefix(args[0], "http://") || strings.HasPrefix(args[0], "https://") {
		better.Hint, better.Next = "a web server becomes an agent by", interact.Next(cli.StepCommand, "lmosd expose "+terminal.Shell(args[0]))
		return &better
	}
	if bare := strings.Trim(args[0], "\"'`“”„‘’«» ,"); bare != args[0] && bare != "" {
		better.Hint, better.Next = "leave the quotes out", interact.Next(cli.StepRetype, args[0], bare)
		return &better
	}
	if len(args) < 2 {
		return err
	}
	g := a.agentNow(ctx, args[1])
	if g == nil || !slices.Contains(slices.Concat(g.Actions, g.Properties), args[0]) {
		return err
	}
	better.Hint = "the agent comes first"
	words := append([]string{args[1], args[0]}, args[2:]...)
	for i, word := range words {
		words[i] = terminal.Shell(word)
	}
	better.Next = interact.Next(cli.StepCommand, "lmosd "+verb+" "+strings.Join(words, " "))
	return &better
}
