package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/interact"
)

// An app is one execution of the program: its environment, its streams, and the flags that every command has.
type app struct {
	env    []string
	stdin  io.Reader
	out    *screen // data
	talk   *screen // everything else: errors, hints, coverage, next commands
	flags  globalFlags
	target target // the node that was asked, once there is one
}

// globalFlags are the flags of every command. There are six, and no more: each shows on every help page.
type globalFlags struct {
	config, dataDir, node, output, jq string
	verbose                           bool
}

func newApp(env []string, stdin io.Reader, stdout, stderr io.Writer) *app {
	return &app{env: env, stdin: stdin, out: newScreen(stdout, env), talk: newScreen(stderr, env)}
}

// run executes the command line and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := newRootCommand(a)
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.out)
	root.SetErr(a.talk)
	if err := root.ExecuteContext(ctx); err != nil {
		// The flag may stand behind the one that could not be read.
		return a.fail(err, a.programs() || wantsJSON(args))
	}
	return 0
}

func (f *globalFlags) register(set *pflag.FlagSet) {
	set.StringVarP(&f.config, "config", "c", "", "configuration `FILE`")
	set.StringVar(&f.dataDir, "data-dir", "", "folder `DIR` of the node's key, store and socket")
	set.StringVar(&f.node, "node", "", "node to ask: `URL`, socket, or name of a context")
	set.StringVarP(&f.output, "output", "o", "table", "`FORM` of what is printed: "+strings.Join(outputs, "|"))
	set.StringVar(&f.jq, "jq", "", "print what the jq `EXPR` gives; implies -o json")
	set.BoolVarP(&f.verbose, "verbose", "v", false, "say more on standard error")
}

// check looks at the flags that every command has, before the command does anything.
func (a *app) check(*cobra.Command, []string) error {
	if !slices.Contains(outputs, a.flags.output) {
		return usage(hintFor(a.flags.output, outputs, "-o json"), "-o %s is none of %s", a.flags.output, strings.Join(outputs, ", "))
	}
	if a.flags.jq == "" {
		return nil
	}
	a.flags.output = "json"
	_, err := a.query()
	return err
}

// programs reports whether a program reads the output: errors are JSON then, too.
func (a *app) programs() bool {
	return slices.Contains([]string{"json", "jsonl"}, a.flags.output) || a.flags.jq != ""
}

// wantsJSON reports whether args ask for JSON, without understanding the rest of them.
func wantsJSON(args []string) bool {
	for i, arg := range args {
		form, joined := strings.CutPrefix(arg, "--output=")
		switch {
		case arg == "--":
			return false
		case arg == "--jq" || strings.HasPrefix(arg, "--jq="):
			return true
		case !joined && (arg == "-o" || arg == "--output") && i+1 < len(args):
			form = args[i+1]
		case !joined:
			form = strings.TrimPrefix(strings.TrimPrefix(arg, "-o"), "=")
			if form == arg {
				continue
			}
		}
		if form == "json" || form == "jsonl" {
			return true
		}
	}
	return false
}

// usage returns an error about the command line.
func usage(hint, format string, args ...any) error {
	return interact.Errorf(interact.Usage, hint, format, args...)
}

// hintFor returns "did you mean …?" if one of known is near to word, else otherwise.
func hintFor(word string, known []string, otherwise string) string {
	if s := configs.Suggest(word, known); s != "" {
		return fmt.Sprintf("did you mean %q?", s)
	}
	return otherwise
}

// takes returns a check of the number of arguments. A negative high means any.
func takes(low, high int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < low:
			return missing(cmd, args)
		case high >= 0 && len(args) > high:
			return usage(cmd.UseLine(), "%s takes no argument %q", cmd.CommandPath(), args[high])
		}
		return nil
	}
}

// missing names the argument that is not there, as the use line of cmd does.
func missing(cmd *cobra.Command, args []string) error {
	names := strings.Fields(cmd.Use)[1:]
	return usage(cmd.UseLine(), "%s needs %s", cmd.CommandPath(), names[min(len(args), len(names)-1)])
}

// flagError makes an error of the flag parser one of ours, with the flag that was meant.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return usage(cmd.CommandPath()+" --help", "%v", err)
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
	flag := "--" + unknown.GetSpecifiedName()
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		flag = "-" + short
	}
	return usage(hintFor(flag, names, cmd.CommandPath()+" --help"), "%s has no flag %s", cmd.CommandPath(), flag)
}
