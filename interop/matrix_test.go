package interop

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interop/testmesh"
)

var update = flag.Bool("update", false, "write docs/interactions.md")

// A lack is a missing feature of protocols, with the reason. Only lacks exclude a cell of the page from the test.
type lack struct {
	who []string // bindings
	ops []string // names of operations, groups, or kinds of affordances
	why string
	// instead is the expected result of the operation: an error, or another response that the page explains. Nil: the protocol does not
	// have the operation.
	instead func(x *attempt, o *operation) error
}

// ofConsumers are the operations that consumers do not have.
var ofConsumers = []lack{
	{[]string{"HTTP"}, []string{"Events and changes"},
		"A response ends. The three other mechanisms of HTTP have subscriptions.", nil},
	{[]string{"HTTP SSE"}, []string{"Properties", "cancelaction", allTasks}, "Available in plain HTTP.", nil},
	{[]string{"HTTP long poll", "HTTP webhook"}, []string{"Properties", "Actions and tasks", "Streams"},
		"Available in plain HTTP.", nil},
	{[]string{"HTTP long poll"}, []string{observeAll},
		"There is no path for the next change of any property; the status is 404.", refused("observable")},
	{[]string{"ws kotlin"}, []string{"queryaction", "cancelaction", allTasks, detached, observeAll, subscribeAll, replay},
		"The Kotlin SDK has no classes for these messages.", nil},
	{[]string{"ws kotlin", "ws wtp", "CoAP"}, []string{inPieces},
		"A request has one response: at the end, with all parts.", whole},
	{[]string{"ws kotlin", "ws wtp", "MQTT"}, []string{upload, bothWays},
		"A message has one input, which is complete before the node calls.", nil},
	{[]string{"CoAP"}, []string{upload, bothWays}, "The node assembles the blocks of an input before it calls.", nil},
	{[]string{"MQTT", "CoAP"}, []string{writeAll}, "An object of values writes its members only.", nil},
	{[]string{"MQTT", "CoAP"}, []string{replay}, "A subscription has no last event id.", nil},
}

// ofAgents are the operations that agents do not have.
var ofAgents = []lack{
	{[]string{"command"}, []string{"readallproperties"}, "It has no properties; the result is {}.", empty},
	{[]string{"command"}, []string{"properties", "events"}, "It has actions only; other operations are refused.", refused("")},
	{[]string{"ws (kotlin)", "coap"}, []string{inPieces}, "A request has one response: at the end, with all parts.", whole},
	{[]string{"ws (kotlin)", "mqtt"}, []string{upload, bothWays}, "A message has one input; a stream is refused.",
		refused("does not accept a request stream", "over MQTT")},
	{[]string{"coap"}, []string{bothWays},
		"The node assembles the stream and sends it in blocks; the response follows the last.", whole},
}

// ofPairs are the operations that some pairs of protocols do not support.
var ofPairs = []lack{
	{[]string{"ws doc", "command"}, []string{bothWays},
		"A command has one output for consumers that accept JSON, as frames do. It is sent at the end.", whole},
}

// of returns the common lack of the protocols for an operation; nil if there is none.
func of(lacks []lack, g *group, o *operation, who ...string) *lack {
	for i, l := range lacks {
		speaks := slices.Contains(l.ops, o.name) || slices.Contains(l.ops, o.needs) || slices.Contains(l.ops, g.name)
		if speaks && !slices.ContainsFunc(who, func(w string) bool { return !slices.Contains(l.who, w) }) {
			return &lacks[i]
		}
	}
	return nil
}

// refused expects an immediate error with one of these words.
func refused(words ...string) func(*attempt, *operation) error {
	return func(x *attempt, o *operation) error {
		began, alone := time.Now(), *x
		alone.beside = interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
			return completed(m, "", nil), nil
		})
		err := o.try(&alone)
		switch {
		case err == nil:
			return errors.New("it was not refused")
		case errors.Is(err, errNot), errors.Is(err, errOther), time.Since(began) > refusalTimeout,
			!slices.ContainsFunc(words, func(some string) bool { return strings.Contains(err.Error(), some) }):
			return fmt.Errorf("not refused with %q, but: %w", words, err)
		}
		return nil
	}
}

// whole expects one response with the whole output.
func whole(x *attempt, o *operation) error {
	m, want := stream("echo"), strings.Join(chunks, "")
	if o.name == inPieces {
		m, want = &interact.Message{Type: interact.InvokeAction, Name: "count"}, "onetwo"
		x.open()
	}
	r, err := send(x, m)
	if err == nil && (r.Media() == interact.JSON && !json.Valid(r.Data) || bare(plain(r.Data)) != bare(want)) {
		err = fmt.Errorf("the output is %q", r.Data)
	}
	return err
}

// empty expects no properties.
func empty(x *attempt, _ *operation) error {
	return walk(step{x, interact.ReadAllProperties, "", "", "{}"})
}

// bare returns text without its line ends, which a command may have between parts.
func bare(text string) string { return strings.ReplaceAll(text, "\n", "") }

// A tally counts cells.
type tally struct {
	passed, instead, not atomic.Int64
	mu                   sync.Mutex
	pairs                map[[2]string]int // passed cells; owned by mu
}

// Each operation, with every consumer's protocol, of an agent of every protocol, across two nodes.
func TestMatrix(t *testing.T) {
	t.Parallel()
	m := testmesh.Start(t)
	n := tally{pairs: map[[2]string]int{}}
	t.Run("cells", func(t *testing.T) {
		for _, a := range agentBindings {
			name := "lamp-" + strings.NewReplacer(" ", "-", "(", "", ")", "").Replace(a.name)
			open := a.start(t, m, name)
			t.Run(a.name, func(t *testing.T) {
				t.Parallel() // the consumers of one lamp are sequential: each checks what it wrote
				m.Known(t, name)
				for _, c := range consumerBindings {
					n.fill(t, m, c, a, name, open)
				}
			})
		}
	})
	page := write(&n)
	if t.Failed() {
		return
	}
	if *update {
		if err := os.WriteFile("../docs/interactions.md", page, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if have, err := os.ReadFile("../docs/interactions.md"); err != nil || !bytes.Equal(have, page) {
		t.Errorf("docs/interactions.md is not what was seen (%v): go test ./interop -run TestMatrix -update", err)
	}
}

// fill tests all operations of one pair of protocols.
func (n *tally) fill(t *testing.T, m *testmesh.Mesh, c consumerBinding, a agentBinding, lamp string, open func()) {
	again := func() *consumer { return c.open(t, m, lamp) }
	x := &attempt{again(), again, openGo(t, m, lamp), open}
	defer x.hangUp()
	for _, g := range groups {
		for _, o := range g.operations {
			l := cmp.Or(of(ofConsumers, &g, &o, c.name), of(ofAgents, &g, &o, a.name), of(ofPairs, &g, &o, c.name, a.name))
			var err error
			switch {
			case l == nil:
				n.passed.Add(1)
				n.mu.Lock()
				n.pairs[[2]string{c.name, a.name}]++
				n.mu.Unlock()
				err = o.try(x)
			case l.instead != nil:
				n.instead.Add(1)
				err = l.instead(x, &o)
			default:
				n.not.Add(1)
			}
			if err != nil {
				t.Errorf("%s, %s to %s: %v", o.name, c.name, a.name, err)
			}
		}
	}
}

const head = `# Interactions

This page lists the operations supported between each pair of protocols. A consumer uses its own node over one protocol, and another node uses the agent over
one. An operation works if **both support it**: see the consumer in the first tables and the agent in the next.

- **✓** passed in a test, with each counterpart that supports it. **–** does not exist in that protocol; [reasons](#unsupported-operations).
- **ws** is the WebSocket subprotocol in the dialect of the LMOS documents (doc), of the Kotlin SDK or of the Web Thing Protocol (wtp).
- **attached** is an agent that connects to its node, **command** a command line.

Of %d cells (%d operations × %d consumers × %d agents) %d passed. %d were requested although they are not supported: they were refused
with an error, or answered as described below. The other %d operations do not exist in the protocol. A test in [interop](../interop)
writes this page, and fails if it differs:

` + "```console\n$ go test ./interop -run TestMatrix -update\n```\n\n## Consumers\n"

// write generates the page from the results.
func write(n *tally) []byte {
	var b bytes.Buffer
	var consumers, agents []string
	for _, c := range consumerBindings {
		consumers = append(consumers, c.name)
	}
	for _, a := range agentBindings {
		agents = append(agents, a.name)
	}
	rows := 0
	for _, g := range groups {
		rows += len(g.operations)
	}
	fmt.Fprintf(&b, head, rows*len(consumers)*len(agents), rows, len(consumers), len(agents), n.passed.Load(), n.instead.Load(),
		n.not.Load())
	for _, g := range groups {
		none := slices.DeleteFunc(slices.Clone(consumers), func(c string) bool { return hasSome(&g, ofConsumers, c) })
		some := slices.DeleteFunc(slices.Clone(consumers), func(c string) bool { return slices.Contains(none, c) })
		b.WriteString("\n### " + g.name + "\n\n" + g.patterns)
		if len(none) > 0 {
			b.WriteString(" Not listed, because they support none of these: " + strings.Join(none, ", ") + ".")
		}
		b.WriteString("\n\n" + header("operation", some) + marks(&g, ofConsumers, some))
	}
	b.WriteString("\n## Agents\n\n" + header("operation", agents))
	for _, g := range groups {
		b.WriteString(marks(&g, ofAgents, agents))
	}
	b.WriteString("\n## Pairs\n\nThe number of operations that passed.\n\n" + header("consumer", agents))
	for _, c := range consumers {
		b.WriteString("| " + c + " |")
		for _, a := range agents {
			fmt.Fprintf(&b, " %d |", n.pairs[[2]string{c, a}])
		}
		b.WriteByte('\n')
	}
	b.WriteString("\n## Unsupported operations\n" + reasons("consumers", ofConsumers) + reasons("agents", ofAgents) +
		"\nAnd between two that both support it:\n" + reasons("pair", ofPairs))
	return b.Bytes()
}

func hasSome(g *group, lacks []lack, who string) bool {
	return slices.ContainsFunc(g.operations, func(o operation) bool { return of(lacks, g, &o, who) == nil })
}

// marks returns the rows of a group.
func marks(g *group, lacks []lack, who []string) string {
	var b strings.Builder
	for _, o := range g.operations {
		b.WriteString("| " + o.name + " |")
		for _, w := range who {
			if of(lacks, g, &o, w) == nil {
				b.WriteString(" ✓ |")
			} else {
				b.WriteString(" – |")
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func reasons(who string, lacks []lack) string {
	text := "\n" + header(who, []string{"operations", "reason"})
	for _, l := range lacks {
		text += "| " + strings.Join(l.who, ", ") + " | " + strings.Join(l.ops, "; ") + " | " + l.why + " |\n"
	}
	return text
}

// header returns the head of a table.
func header(first string, names []string) string {
	return "| " + first + " | " + strings.Join(names, " | ") + " |\n|---|" + strings.Repeat("---|", len(names)) + "\n"
}
