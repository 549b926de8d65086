// Package scaffold implements lmosd new: it writes folders with a new agent and its test.
package scaffold

import (
	"cmp"
	"embed"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/lazyregexp"
	"github.com/lmosd/lmosd/internal/storage"
	"github.com/lmosd/lmosd/sdk"
)

// templates has a folder for each language. The files end with .txt, so that the go command does not compile them.
//
//go:embed all:templates
var templates embed.FS

// A language is a value of --lang.
type language struct {
	name    string
	library map[string]*string // files of the SDK, by name
	serve   string             // commands in the folder; NAME is the name of the agent
	call    string
	test    string
}

var languages = []language{
	{"go", nil, "go mod tidy && go run .", "lmosd call NAME greet name=Ada", "go test ."},
	{"python", map[string]*string{"lmosd.py": &sdk.Python}, "python3 agent.py", "lmosd call NAME greet name=Ada", "python3 -m unittest"},
	{"js", map[string]*string{"lmosd.mjs": &sdk.JavaScript, "lmosd.d.mts": &sdk.Types}, "node main.mjs", "lmosd call NAME greet name=Ada", "npm test"},
	{"sh", nil, "lmosd expose exec:./agent.sh --name NAME --action greet", "lmosd call NAME greet Ada", "sh test.sh"},
}

// goVersion is that of the go.mod of lmosd, which an agent in Go requires.
const goVersion = "1.26.0"

// A request is one execution of `lmosd new agent`.
type request struct {
	name, lang, dir, version string
	force                    bool
}

// NewCommand returns `lmosd new`; version is that of this program.
func NewCommand(c *cli.Console, version func() string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "new",
		Short: "write the files of a new agent",
		Long:  "Writes the files of a new agent, which runs as it is.",
		Example: `  lmosd new agent weather --lang python
  lmosd new agent weather --lang sh --dir agents/weather`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd expose, lmosd publish"),
		Args:        cli.Subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var r request
	agent := &cobra.Command{
		Use:   "agent <name>",
		Short: "write a folder with a new agent and its test",
		Long: "Writes an agent with an action and a property, a test, a README.md and the library that it needs, in Go, Python,\n" +
			"JavaScript or for the shell. It needs no node and no network. A folder that is not empty is refused; with --force,\n" +
			"the files with the names of new ones are replaced, and others kept.",
		Example: `  lmosd new agent hello --lang python
  lmosd new agent hello --lang go --dir agents/hello
  lmosd new agent hello --lang js --force`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd expose, lmosd call, lmosd validate"),
		Args:        cli.Takes(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			r.name, r.version = args[0], version()
			return r.run(c)
		},
	}
	agent.Flags().StringVar(&r.lang, "lang", "", "`LANGUAGE` of the agent: "+strings.Join(names(), "|"))
	agent.Flags().StringVar(&r.dir, "dir", "", "folder `DIR` to write; the name of the agent by default")
	agent.Flags().BoolVar(&r.force, "force", false, "replace files in a folder that is not empty")
	// The error would be that the flag is not registered.
	_ = agent.RegisterFlagCompletionFunc("lang", cobra.FixedCompletions(names(), cobra.ShellCompDirectiveNoFileComp))
	cmd.AddCommand(agent)
	return cmd
}

func names() []string { return cli.Each(languages, func(l language) string { return l.name }) }

// A scaffold is the document of `lmosd new agent`.
type scaffold struct {
	cli.Head
	Name  string   `json:"name"`
	Lang  string   `json:"lang"`
	Dir   string   `json:"dir"`
	Files []string `json:"files"` // in Dir
	Serve string   `json:"serve"` // commands in Dir
	Call  string   `json:"call"`
	Test  string   `json:"test"`
}

func (r *request) run(c *cli.Console) error {
	i := slices.IndexFunc(languages, func(l language) bool { return l.name == r.lang })
	switch {
	case r.lang == "":
		return cli.Usage("", "the language is missing, expected one of %s", strings.Join(names(), ", ")).
			Then(cli.StepCommand, "lmosd new agent "+terminal.Shell(r.name)+" --lang python")
	case i < 0:
		return cli.Usage(cli.HintFor(aliased(r.lang), names(), "--lang python"), "--lang is %s, expected one of %s", r.lang, strings.Join(names(), ", "))
	case !validName().MatchString(r.name):
		return cli.Usage("", "expected a name of lower-case letters, digits and hyphens, got %q", r.name).
			Then(cli.StepCommand, "lmosd new agent "+slug(r.name)+" --lang "+r.lang)
	}
	l, dir := languages[i], cmp.Or(r.dir, r.name)
	if err := r.room(dir); err != nil {
		return err
	}
	s := scaffold{Head: cli.NewHead("Scaffold"), Name: r.name, Lang: l.name, Dir: dir, Serve: r.fill(l.serve), Call: r.fill(l.call), Test: r.fill(l.test)}
	files, err := r.files(l)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return unwritable(dir, err)
	}
	for _, f := range files {
		if err := f.write(dir); err != nil {
			return unwritable(filepath.Join(dir, f.name), err)
		}
		s.Files = append(s.Files, f.name)
	}
	if err := c.Show(s.view()); err != nil {
		return err
	}
	c.Next("cd "+terminal.Shell(dir)+" && "+s.Serve, s.Call+"   # in a second terminal", s.Test)
	return nil
}

func (s scaffold) view() cli.View {
	return cli.View{Doc: s, Names: cli.Each(s.Files, func(f string) string { return filepath.Join(s.Dir, f) }),
		People: cli.Line("wrote " + s.Dir + " · " + strings.Join(s.Files, ", "))}
}

// room returns an error if the folder has files that the user may want to keep.
func (r *request) room(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && len(entries) == 0, err == nil && r.force:
		return nil
	case err != nil:
		return unwritable(dir, err)
	}
	return cli.Usage("choose another with --dir, or replace its files with --force", "the folder %s is not empty", terminal.OneLine(dir))
}

// unwritable returns the error of a file or folder that cannot be written.
func unwritable(path string, err error) error {
	if storage.Full(err) {
		return &interact.Error{Code: interact.DiskFull, Title: "the disk of " + path + " is full", Err: err, Hint: "free some space"}
	}
	e := cli.Usage("choose another folder with --dir", "%s cannot be written", terminal.OneLine(path))
	e.Err = cli.Reason(err)
	return e
}

// A file is one file of a new agent.
type file struct{ name, content string }

func (f file) write(dir string) error {
	mode := fs.FileMode(0o644)
	if strings.HasSuffix(f.name, ".sh") {
		mode = 0o755
	}
	path := filepath.Join(dir, f.name)
	if err := os.WriteFile(path, []byte(f.content), mode); err != nil {
		return err
	}
	return os.Chmod(path, mode) // of a file that was there
}

// files returns the files of an agent, sorted by name.
func (r *request) files(l language) ([]file, error) {
	var all []file
	folder := "templates/" + l.name
	entries, err := templates.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		raw, err := templates.ReadFile(folder + "/" + e.Name())
		if err != nil {
			return nil, err
		}
		all = append(all, file{strings.TrimSuffix(e.Name(), ".txt"), r.fill(string(raw))})
	}
	for name, content := range l.library {
		all = append(all, file{name, *content})
	}
	slices.SortFunc(all, func(a, b file) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

// fill replaces the placeholders of a template.
func (r *request) fill(text string) string {
	version := "v0.0.0" // of a module that is replaced by a checkout
	if released().MatchString(r.version) {
		version = "v" + r.version
	}
	return strings.NewReplacer("GOVERSION", goVersion, "VERSION", version, "NAME", r.name).Replace(text)
}

var (
	released = lazyregexp.New(`^\d+\.\d+\.\d+(-rc\.\d+)?$`)
	// validName matches names that are also names of folders, modules and packages.
	validName = lazyregexp.New(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)
	unusual   = lazyregexp.New(`[^a-z0-9]+`)
)

// slug returns a valid name that is similar to text.
func slug(text string) string {
	name := strings.Trim(unusual().ReplaceAllString(strings.ToLower(text), "-"), "-0123456789")
	if len(name) > maxName {
		name = strings.Trim(name[:maxName], "-")
	}
	return cmp.Or(name, "hello")
}

// maxName limits a suggested name.
const maxName = 40

// aliased returns the value of --lang that text stands for, or text.
func aliased(text string) string {
	text = strings.ToLower(text)
	return cmp.Or(map[string]string{"golang": "go", "py": "python", "python3": "python", "javascript": "js", "node": "js", "nodejs": "js",
		"ts": "js", "typescript": "js", "mjs": "js", "bash": "sh", "shell": "sh", "exec": "sh"}[text], text)
}
