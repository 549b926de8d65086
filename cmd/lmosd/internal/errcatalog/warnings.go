package errcatalog

import (
	"slices"
	"strings"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

// A warningCode is one warning of the catalogue.
type warningCode struct {
	Code     string `json:"code"`
	Slug     string `json:"slug"`
	Severity string `json:"severity"`
	Meaning  string `json:"meaning"`
	Remedy   string `json:"remedy"`
}

// inTheClear is the only warning of commands; the others are those of nodes.
var inTheClear = api.WarningKind{Code: "LMOS-W071", Title: "token-in-the-clear", Severity: "medium"}

// warningCodes returns all warnings, by code.
func warningCodes() (list []warningCode) {
	for _, k := range append(api.WarningKinds(), inTheClear) {
		e := warningExplanations[k.Code]
		list = append(list, warningCode{Code: k.Code, Slug: k.Title, Severity: k.Severity, Meaning: e.meaning, Remedy: e.remedy})
	}
	return list
}

func (a *app) listWarnings() error {
	list := warningCodes()
	column := func(name string, keep bool, text func(warningCode) string) terminal.Column[warningCode] {
		return terminal.Column[warningCode]{Name: name, Keep: keep, Cell: terminal.TextOf(text)}
	}
	t := terminal.TableOf(list, false, []terminal.Column[warningCode]{
		column("CODE", true, func(w warningCode) string { return w.Code }),
		column("SEVERITY", true, func(w warningCode) string { return w.Severity }),
		column("NAME", true, func(w warningCode) string { return w.Slug }),
		column("MEANING", false, func(w warningCode) string { return w.Meaning }),
	})
	return a.Show(cli.View{Doc: cli.List[warningCode]{Head: cli.NewHead("WarningCodeList"), Items: list},
		Names: cli.Each(list, func(w warningCode) string { return w.Code }), People: cli.Body(t)})
}

// explainWarning explains a warning by its code or name, and reports whether there is one.
func (a *app) explainWarning(name string) (found bool, err error) {
	code := "LMOS-" + strings.TrimPrefix(strings.ToUpper(name), "LMOS-")
	all := warningCodes()
	i := slices.IndexFunc(all, func(w warningCode) bool { return w.Code == code || w.Slug == name })
	if i < 0 {
		return false, nil
	}
	w := all[i]
	s := &terminal.Sheet{}
	s.Add("code", w.Code+"  "+w.Slug)
	s.Add("meaning", w.Meaning)
	s.Add("remedy", w.Remedy)
	s.Add("severity", w.Severity)
	return true, a.Show(cli.View{Doc: struct {
		cli.Head
		warningCode
	}{cli.NewHead("WarningCode"), w}, Names: []string{w.Code}, People: cli.Body(s)})
}

// warningExplanations has an entry for every warning.
var warningExplanations = map[string]explanation{
	"LMOS-W001": {"The node has no connection to another node. It serves its own agents, but finds no others.",
		"lmosd peers connect ADDRESS, or lmosd config set mesh.bootstrap ADDRESS; lmosd net shows the addresses of the node"},
	"LMOS-W005": {"The node announces only loopback addresses, so that no other machine reaches it.",
		"check the interfaces and listen.no_announce, or name its addresses: lmosd config set listen.announce ADDRESS"},
	"LMOS-W020": {"The disk of the data directory is nearly full, or not writable. The node stores nothing new.",
		"make space; the node goes on without a restart"},
	"LMOS-W021": {"Files of the store are damaged now (high), or were damaged and repaired (low): what is lost is listed.",
		"restart the node; publish again what lmosd status lists, then delete the folder that it names"},
	"LMOS-W031": {"The clock of the node differs from those of its peers. Above 5 minutes (high) descriptions are refused, here and there.",
		"timedatectl set-ntp true"},
	"LMOS-W032": {"A loop of the node did not run for twice its interval and 30 s. With a vital one (high) the node is not ready: that is a deadlock.",
		"restart the node, which a service with a watchdog does by itself; report its log. For others, check the disk and the network"},
	"LMOS-W042": {"No other node has the descriptions of some agents of this node yet.",
		"connect to a peer: lmosd peers connect ADDRESS; they are announced then"},
	"LMOS-W043": {"The grant of an agent of another owner ends within 2 days or has ended. The node then hosts it no longer.",
		"get a newer grant from its owner: lmosd hosting put FILE"},
	"LMOS-W044": {"The owner of a hosted agent has granted another description. Nodes that have seen that grant do not call the agent here.",
		"get the grant from its owner, and after an update of the agent: lmosd hosting put FILE"},
	"LMOS-W050": {"The directory is full. Descriptions of other nodes are requested from the mesh when they are needed.",
		"raise directory.max_things, or deny owners with many descriptions: lmosd policy deny DID"},
	"LMOS-W051": {"The directory is nearly full. What is trusted, used and connected stays.", "raise directory.max_things"},
	"LMOS-W060": {"Keys of the configuration were changed and reloaded, but take effect only after a restart. The warning lists them.",
		"restart the node when that suits"},
	"LMOS-W061": {"An owner signed two records of one agent with one sequence number. For the key of this node (high), two processes use it.",
		"stop the other process and publish again; for another owner, ask it, or deny it: lmosd policy deny DID"},
	"LMOS-W062": {"The audit log of a member contradicts a checkpoint that the member signed before: it was changed, replaced or restored.",
		"run lmosd audit verify at the member; when the case is closed, delete its file in audit/members and restart"},
	"LMOS-W071": {"A command sends a token over plain HTTP to another host. Anyone on the path can read it.", "use an https:// address, or a tunnel"},
}
