package service

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

func newStatusCommand(c *cli.Console) *cobra.Command {
	var user bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "show the state of the service",
		Long: "Shows what systemd reports of the service, with the last state of the node:\n" +
			"of the system, or of your user if the system has none. Exit code 3 if the\n" +
			"service does not run, 4 if none is installed.",
		Example: `  lmosd service status
  lmosd service status --user -o json --jq .active`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd status, lmosd service install"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := newSetup(c, user)
			if !user && !s.installed() { // that of the user is then meant, if there is one
				if s.user = true; !s.installed() {
					s.user = false
				}
			}
			return s.status(cmd.Context())
		},
	}
	userFlag(cmd, &user)
	return cmd
}

// installed reports whether a unit of the wanted level exists.
func (s *setup) installed() bool {
	return exists(filepath.Join(s.places.own(s.user), unitName)) || s.places.packaged(s.user) != ""
}

// A state is what systemd reports of a service.
type state struct {
	Active   string    `json:"active"` // active, activating, reloading, deactivating, inactive or failed
	Enabled  bool      `json:"enabled"`
	Since    time.Time `json:"since,omitzero"` // of Active
	Result   string    `json:"result,omitempty"`
	Exit     int       `json:"exit,omitempty"` // code of the last process that has ended
	Restarts int       `json:"restarts"`
	PID      int       `json:"pid,omitempty"`
	Memory   uint64    `json:"memory_bytes,omitempty"`
	Node     string    `json:"node,omitempty"` // the last status line of the node
	file     string
}

// properties are the properties of the unit that state needs.
const properties = "LoadState,ActiveState,UnitFileState,StateChangeTimestamp,Result,ExecMainStatus,NRestarts,MainPID,MemoryCurrent,StatusText,FragmentPath"

// state asks systemd for the state of the service. It is nil if systemd knows no such service.
func (s *setup) state(ctx context.Context) (*state, error) {
	out, err := s.systemctl(ctx, "show", "--timestamp=utc", "--property="+properties, unitName)
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for row := range strings.Lines(out) {
		key, value, _ := strings.Cut(strings.TrimSuffix(row, "\n"), "=")
		values[key] = value
	}
	number := func(key string) int {
		n, _ := strconv.Atoi(values[key]) // "[not set]" is 0
		return n
	}
	if values["LoadState"] != "loaded" {
		return nil, nil
	}
	st := &state{Active: values["ActiveState"], Enabled: strings.HasPrefix(values["UnitFileState"], "enabled"), Exit: number("ExecMainStatus"),
		Restarts: number("NRestarts"), PID: number("MainPID"), Node: values["StatusText"], file: values["FragmentPath"]}
	if st.Result = values["Result"]; st.Result == "success" {
		st.Result = ""
	}
	if st.Since, err = time.Parse("Mon 2006-01-02 15:04:05 MST", values["StateChangeTimestamp"]); err != nil {
		st.Since = time.Time{} // it has never changed
	}
	if memory, err := strconv.ParseUint(values["MemoryCurrent"], 10, 64); err == nil && memory < 1<<62 { // without accounting it is the maximum
		st.Memory = memory
	}
	return st, nil
}

// status shows the state of the service.
func (s *setup) status(ctx context.Context) error {
	if err := s.check(ctx); err != nil {
		return err
	}
	now, err := s.state(ctx)
	if err != nil {
		return err
	}
	if now == nil {
		return s.missing()
	}
	doc := s.document(now.file)
	doc.Installed, doc.state = true, now
	if text, err := os.ReadFile(now.file); err == nil {
		doc.DataDir = dataDirOf(string(text), s.places.home)
	}
	if err := s.Show(cli.View{Doc: doc, Names: []string{unitName}, People: cli.Body(doc.sheet())}); err != nil {
		return err
	}
	running := now.Active == "active" || now.Active == "reloading"
	if s.ForPeople() {
		s.Talk.Line(s.Talk.Paint(terminal.Dim, "log: ") + s.journal())
		s.Next(s.next(running, doc.DataDir)...)
	}
	if !running {
		return cli.SilentError(cli.ExitNoNode)
	}
	return nil
}

// next returns the commands after one about the service.
func (s *setup) next(running bool, dataDir string) []string {
	switch {
	case !running:
		return []string{line("systemctl", s.leveled([]string{"start", "lmosd"})), "lmosd config validate"}
	case s.user:
		return []string{"lmosd status"}
	}
	return []string{"sudo lmosd status --data-dir " + terminal.Shell(dataDir)}
}

// sheet returns the state for people.
func (d *document) sheet() *terminal.Sheet {
	sheet := &terminal.Sheet{}
	sheet.Add("service", d.Unit+" ("+d.Scope+")")
	state := d.Active
	if d.Result != "" {
		state += " (" + d.Result
		if d.Exit != 0 {
			state += ", exit code " + strconv.Itoa(d.Exit)
		}
		state += ")"
	}
	sheet.Add("state", state)
	if !d.Since.IsZero() {
		sheet.Add("since", d.Since.Format(time.RFC3339)+", "+terminal.Ago(d.Since, time.Now())+" ago")
	}
	enabled := "yes"
	if !d.Enabled {
		enabled = "no, it does not start with the computer"
		if d.Scope == "user" {
			enabled = "no, it does not start with your session"
		}
	}
	sheet.Add("enabled", enabled)
	sheet.Add("restarts", strconv.Itoa(d.Restarts))
	if d.PID != 0 {
		sheet.Add("process", strconv.Itoa(d.PID))
	}
	if d.Memory != 0 {
		sheet.Add("memory", terminal.Size(int(d.Memory)))
	}
	sheet.Add("node", d.Node)
	sheet.Add("unit", d.File)
	sheet.Add("data", d.DataDir)
	return sheet
}

// showDryRun prints what a command would do.
func (s *setup) showDryRun(doc *document) error {
	return s.Show(cli.View{Doc: doc, Names: []string{doc.File}, People: func(to *terminal.Screen, _ bool) {
		if doc.Text != "" {
			if doc.Changed {
				to.Line("# " + doc.File)
			} else {
				to.Line("# " + doc.File + " is not changed")
			}
			if doc.Changed {
				to.Print(doc.Text)
			}
			to.Line("")
		}
		to.Line("# commands")
		for _, command := range doc.Commands {
			to.Line(command)
		}
	}})
}

// showInstalled prints what an installation did.
func (s *setup) showInstalled(doc *document, started bool) error {
	err := s.Show(cli.View{Doc: doc, Names: []string{doc.File}, People: func(to *terminal.Screen, _ bool) {
		if doc.Changed {
			to.Line("wrote " + terminal.OneLine(doc.File))
		} else {
			to.Line(terminal.OneLine(doc.File) + " is not changed")
		}
		sheet := &terminal.Sheet{}
		sheet.Add("data", doc.DataDir)
		sheet.Add("config", doc.Config)
		sheet.Add("log", s.journal())
		sheet.Write(to)
	}})
	if err != nil || !s.ForPeople() {
		return err
	}
	if name := s.Variable("USER"); s.user && !exists(filepath.Join(s.places.root, "/var/lib/systemd/linger", name)) {
		s.Talk.Line("the service ends with your last session; it stays, and starts with the computer, after: loginctl enable-linger")
	}
	if started {
		s.Next("lmosd service status"+s.level(), s.next(true, doc.DataDir)[0])
	} else {
		s.Next(line("systemctl", s.leveled([]string{"start", "lmosd"})))
	}
	return nil
}

// level returns the flag of the level, after a space.
func (s *setup) level() string {
	if s.user {
		return " --user"
	}
	return ""
}

// showUninstalled prints what was removed and what is kept.
func (s *setup) showUninstalled(doc *document) error {
	return s.Show(cli.View{Doc: doc, Names: []string{doc.File}, People: func(to *terminal.Screen, _ bool) {
		if doc.Changed {
			to.Line("removed " + terminal.OneLine(doc.File))
		} else {
			to.Line("stopped and disabled; the unit belongs to a package: " + terminal.OneLine(doc.File))
		}
		if doc.DataDir != "" {
			to.Line("kept " + terminal.OneLine(doc.DataDir) + ", with the key of the node")
		}
	}})
}
