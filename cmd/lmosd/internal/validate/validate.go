// Package validate implements lmosd validate: it reports invalid Thing Descriptions and features that lmosd does not support.
package validate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// NewCommand returns `lmosd validate`.
func NewCommand(c *cli.Console) *cobra.Command {
	return &cobra.Command{
		Use:   "validate <file…>",
		Short: "check Thing Descriptions, offline",
		Long: "Checks files against the schema of TD 1.1 and the rules of LMOS, and the proof of signed files; - reads standard\n" +
			"input. It needs no node. Each error is printed as file: pointer: reason; a rule that is stricter than the\n" +
			"official JSON Schema of TD 1.1 is named after the reason. Warnings name features that a node or another program\n" +
			"does not support; they do not fail. Exit code 2 if a file is invalid.",
		Example: `  lmosd validate weather.td.json
  lmosd validate agents/*.td.json -o json --jq '.items[] | select(.valid | not) | .file'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd publish"),
		Args:        cli.Takes(1, -1),
		RunE:        func(cmd *cobra.Command, args []string) error { return run(cmd.Context(), c, args) },
	}
}

// A validation is the document of `lmosd validate`.
type validation struct {
	cli.Head
	Valid bool          `json:"valid"`
	Items []fileVerdict `json:"items"`
}

type fileVerdict struct {
	File     string     `json:"file"`
	Valid    bool       `json:"valid"`
	Name     string     `json:"name,omitempty"`
	Issues   []td.Issue `json:"issues"`
	Warnings []td.Issue `json:"warnings"`
	code     interact.Code
}

func run(ctx context.Context, c *cli.Console, files []string) error {
	v := validation{Head: cli.NewHead("Validation"), Valid: true}
	for _, name := range files {
		raw, err := input.Content(c, name, td.MaxTD)
		if e := interact.AsError(err); e != nil && e.Code != interact.TooLarge {
			return err
		}
		verdict := judge(ctx, name, raw, err)
		v.Items = append(v.Items, verdict)
		v.Valid = v.Valid && verdict.Valid
	}
	if err := c.Show(v.view()); err != nil {
		return err
	}
	if v.Valid {
		if len(files) == 1 && files[0] != "-" {
			c.Next("lmosd publish " + terminal.Shell(files[0]))
		}
		return nil
	}
	return v.failure(c.ForPeople())
}

// judge checks one file; tooLarge is the error of reading it.
func judge(ctx context.Context, name string, raw []byte, tooLarge error) fileVerdict {
	v := fileVerdict{File: name, Issues: []td.Issue{}, Warnings: []td.Issue{}, code: interact.BadTD}
	if tooLarge != nil {
		v.Issues, v.code = []td.Issue{{Reason: tooLarge.Error()}}, interact.TooLarge
		return v
	}
	t, err := td.Parse(raw)
	var invalid *td.ValidationError
	switch {
	case err == nil:
		issues, warnings := signed(ctx, raw)
		v.Valid, v.Name, v.Issues = len(issues) == 0, t.Name(), append(v.Issues, issues...)
		v.Warnings = slices.Concat(v.Warnings, warnings, Obstacles(t), t.Warnings)
	case errors.As(err, &invalid):
		v.Issues, v.code = append(v.Issues, invalid.Issues...), interact.AsError(err).Code
	}
	if err != nil && len(v.Issues) == 0 {
		v.Issues = append(v.Issues, td.Issue{Reason: err.Error()})
	}
	return v
}

func (v validation) view() cli.View {
	w := cli.View{Doc: v}
	for _, f := range v.Items {
		if f.Valid {
			w.Names = append(w.Names, f.File)
		}
	}
	w.People = func(s *terminal.Screen, _ bool) {
		for _, f := range v.Items {
			f.write(s)
		}
	}
	return w
}

// write prints every issue as "file: pointer: reason".
func (v fileVerdict) write(s *terminal.Screen) {
	for _, i := range v.Issues {
		rule := ""
		if i.Rule != "" {
			rule = s.Paint(terminal.Dim, " (beyond the schema of TD 1.1: "+terminal.OneLine(i.Rule)+")")
		}
		s.Line(terminal.OneLine(v.File+": "+i.String()) + rule)
	}
	for _, w := range v.Warnings {
		s.Line(terminal.OneLine(v.File+": "+w.String()) + s.Paint(terminal.Dim, " (warning)"))
	}
	if v.Valid {
		s.Line(s.Paint(terminal.Green, "valid") + " " + terminal.OneLine(v.File+" · "+v.Name))
	}
}

// failure returns the error of a failed validation. Programs get it in the document.
func (v validation) failure(people bool) error {
	if !people {
		return cli.SilentError(cli.ExitUsage)
	}
	bad, code := 0, interact.BadTD
	for _, f := range v.Items {
		if !f.Valid {
			bad++
			code = f.code
		}
	}
	return interact.Errorf(code, "lmosd validate FILE after each change; -o json for programs", "%s",
		fmt.Sprintf("%s of %d %s", terminal.Count(bad, "file", "files"), len(v.Items),
			map[bool]string{true: "is invalid", false: "are invalid"}[bad == 1]))
}
