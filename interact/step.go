package interact

import (
	"encoding/json"
	"slices"
)

// A Step is one possible reaction to an error or a warning. Each reader renders it, for example as a command, and escapes the
// arguments.
type Step struct {
	Kind StepKind `json:"kind"`
	Args []string `json:"args,omitempty"`
}

// A StepKind is one of the constants below, whose comments list the arguments. All arguments are optional.
type StepKind string

const (
	StepShow     StepKind = "show"      // read the description of a Thing: its reference
	StepFind     StepKind = "find"      // search for Things
	StepUse      StepKind = "use"       // repeat the request with one of these exact references
	StepRead     StepKind = "read"      // read a property: reference of the Thing, name
	StepWrite    StepKind = "write"     // write a property: reference of the Thing, name
	StepOption   StepKind = "option"    // repeat the request with an option: its name, its value
	StepTasks    StepKind = "tasks"     // list the tasks of this node
	StepStatus   StepKind = "status"    // read the status of a node: its URL or socket
	StepRun      StepKind = "run"       // start the node: key and value of a setting
	StepConfig   StepKind = "config"    // list the configuration keys, or write a file with the defaults: its name
	StepSet      StepKind = "set"       // change a key in the configuration file: its name, its value
	StepMigrate  StepKind = "migrate"   // replace the keys of earlier versions in the configuration file
	StepID       StepKind = "id"        // print the DID and the addresses of a node, on its host
	StepPeers    StepKind = "peers"     // list the connected peers
	StepConnect  StepKind = "connect"   // connect to a peer: its address
	StepExpose   StepKind = "expose"    // expose an agent: target, name
	StepPublish  StepKind = "publish"   // publish a TD: its file
	StepValidate StepKind = "validate"  // check a TD: its file
	StepLogin    StepKind = "login"     // log in to a server, on the host of its agent: target, scopes
	StepPolicy   StepKind = "policy"    // read, check or change the access rules of the node: what, its argument
	StepHelp     StepKind = "help"      // read the manual: the command
	StepOrgInit  StepKind = "org-init"  // make an organization: its domain
	StepOrgJoin  StepKind = "org-join"  // join an organization: the invitation
	StepOrgLeave StepKind = "org-leave" // end the membership of this node
	StepAccept   StepKind = "accept"    // accept the invitation of another organization
	StepConfirm  StepKind = "confirm"   // confirm a partner: its name
	StepHosting  StepKind = "hosting"   // sign, put, list, end or withdraw a grant of a Thing: what, its argument
	StepConsole  StepKind = "console"   // open the console of this node, signed in, on its host
)

var stepKinds = []StepKind{StepShow, StepFind, StepUse, StepRead, StepWrite, StepOption, StepTasks, StepStatus, StepRun, StepConfig, StepSet, StepMigrate, StepID,
	StepPeers, StepConnect, StepExpose, StepPublish, StepValidate, StepLogin, StepPolicy, StepHelp, StepOrgInit, StepOrgJoin, StepOrgLeave, StepAccept, StepConfirm,
	StepHosting, StepConsole}

// Limits of received steps.
const (
	MaxSteps    = 4
	MaxStepArgs = 4
	MaxStepArg  = 256 // bytes
)

// Next returns a list of one step, for [Error].Next.
func Next(kind StepKind, args ...string) []Step { return []Step{{kind, args}} }

// Then adds a step to e, and returns e.
func (e *Error) Then(kind StepKind, args ...string) *Error {
	e.Next = append(e.Next, Step{kind, args})
	return e
}

// BusyHint goes with [MoreTime] if an agent did not respond in time.
const BusyHint = "see whether the agent is busy, or allow more time"

// MoreTime is the step of a request that timed out.
func MoreTime() []Step { return Next(StepOption, "timeout", "60s") }

// UseOne returns the steps of an ambiguous reference, with the first of its exact references.
func UseOne(refs []string) (steps []Step) {
	for some := range slices.Chunk(refs[:min(len(refs), 8)], MaxStepArgs) {
		steps = append(steps, Step{StepUse, some})
	}
	return steps
}

// KnownSteps returns the steps of known kind whose arguments are within the limits, at most [MaxSteps].
func KnownSteps(list []Step) []Step {
	var known []Step
	for _, s := range list {
		tooLong := func(arg string) bool { return len(arg) > MaxStepArg || Readable(arg) != arg }
		if len(known) < MaxSteps && slices.Contains(stepKinds, s.Kind) && len(s.Args) <= MaxStepArgs && !slices.ContainsFunc(s.Args, tooLong) {
			known = append(known, s)
		}
	}
	return known
}

// Steps are steps in the JSON of a peer. Invalid steps are ignored, because other programs may use the member differently.
type Steps []Step

// UnmarshalJSON implements [json.Unmarshaler]; the steps are those of [KnownSteps].
func (s *Steps) UnmarshalJSON(raw []byte) error {
	var list []Step
	_ = json.Unmarshal(raw, &list) // it keeps what it could decode
	*s = KnownSteps(list)
	return nil
}
