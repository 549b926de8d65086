package interop

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write docs/interactions.md")

// An operation is one row of the table: what it does with a thing, and whether it went as it should.
type operation struct {
	name  string
	needs string // the part of a thing: "properties", "events", "actions"
	try   func(k *talk) error
}

// expect compares JSON values.
func expect(what, got, want string) error {
	var g, w any
	if json.Unmarshal([]byte(got), &g) != nil || json.Unmarshal([]byte(want), &w) != nil || !bytes.Equal(asJSON(g), asJSON(w)) {
		return fmt.Errorf("%s: got %q, want %s", what, got, want)
	}
	return nil
}

var operations = []operation{
	{"readproperty", "properties", func(k *talk) error {
		if k.read == nil {
			return errNot
		}
		got, err := k.read("units")
		return errors.Join(err, expect("units", got, `"celsius"`))
	}},
	{"writeproperty", "properties", func(k *talk) error {
		if k.write == nil {
			return errNot
		}
		if err := k.write("level", "41"); err != nil {
			return err
		}
		got, err := k.read("level")
		return errors.Join(err, expect("level", got, "41"))
	}},
	{"readallproperties", "properties", func(k *talk) error {
		if k.readAll == nil {
			return errNot
		}
		got, err := k.readAll()
		return errors.Join(err, expect("units", string(got["units"]), `"celsius"`))
	}},
	{"readmultipleproperties", "properties", func(k *talk) error {
		if k.readSome == nil {
			return errNot
		}
		got, err := k.readSome("units", "level")
		if err == nil && len(got) != 2 {
			err = fmt.Errorf("%d values", len(got))
		}
		return errors.Join(err, expect("units", string(got["units"]), `"celsius"`))
	}},
	{"writemultipleproperties", "properties", func(k *talk) error {
		if k.writeSome == nil {
			return errNot
		}
		if err := k.writeSome(map[string]any{"level": 7}); err != nil {
			return err
		}
		got, err := k.read("level")
		return errors.Join(err, expect("level", got, "7"))
	}},
	{"writeallproperties", "properties", func(k *talk) error {
		if k.writeAll == nil {
			return errNot
		}
		if err := k.writeAll(map[string]any{"level": 8, "units": "celsius"}); err != nil {
			return err
		}
		got, err := k.read("level")
		if k.writeAll(map[string]any{"level": 9}) == nil {
			err = errors.Join(err, errors.New("writing all but one was accepted"))
		}
		return errors.Join(err, expect("level", got, "8"))
	}},
	{"invokeaction", "actions", func(k *talk) error {
		if k.invoke == nil {
			return errNot
		}
		got, err := k.invoke("add", `{"a":19,"b":23}`)
		return errors.Join(err, expect("add", got, "42"))
	}},
	{"invokeaction that fails", "actions", func(k *talk) error {
		if k.invoke == nil {
			return errNot
		}
		if got, err := k.invoke("fail", "null"); err == nil || !strings.Contains(err.Error(), "out of order") {
			return fmt.Errorf("got %q, %v, want the agent's own words", got, err)
		}
		return nil
	}},
	{"invokeaction with wrong input", "actions", func(k *talk) error {
		if k.invoke == nil {
			return errNot
		}
		if got, err := k.invoke("add", `{"a":"x"}`); err == nil {
			return fmt.Errorf("got %q, want an error", got)
		}
		return nil
	}},
	{"queryaction", "actions", func(k *talk) error {
		if k.query == nil {
			return errNot
		}
		id, err := k.start("wait", "20")
		if err != nil || id == "" {
			return fmt.Errorf("start: %q, %w", id, err)
		}
		for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			state, output, err := k.query("wait", id)
			switch {
			case err != nil:
				return err
			case state == "completed":
				return expect("output", output, `"done"`)
			case state != "pending" && state != "running" || time.Now().After(end):
				return fmt.Errorf("the state is %q", state)
			}
		}
	}},
	{"cancelaction", "actions", func(k *talk) error {
		if k.cancel == nil {
			return errNot
		}
		id, err := k.start("wait", "60000")
		if err != nil {
			return err
		}
		if err := k.cancel("wait", id); err != nil {
			return err
		}
		if state, _, err := k.query("wait", id); err == nil && state != "cancelled" && state != "failed" {
			return fmt.Errorf("the state is %q after the cancel", state)
		}
		return nil
	}},
	{"queryallactions", "actions", func(k *talk) error {
		if k.list == nil {
			return errNot
		}
		id, err := k.start("wait", "1")
		if err != nil {
			return err
		}
		ids, err := k.list("wait")
		if err == nil && !slices.Contains(ids, id) {
			err = fmt.Errorf("%q is not among %q", id, ids)
		}
		return err
	}},
	{"observeproperty, unobserveproperty", "properties", func(k *talk) error { return observed(k, "level") }},
	{"observeallproperties, unobserveallproperties", "properties", func(k *talk) error { return observed(k, "") }},
	{"subscribeevent, unsubscribeevent", "events", func(k *talk) error { return alarmed(k, "alarm") }},
	{"subscribeallevents, unsubscribeallevents", "events", func(k *talk) error { return alarmed(k, "") }},
}

// observed writes the level, through the consumer or beside it, until it is told, and stops.
func observed(k *talk, name string) error {
	if k.observe == nil {
		return errNot
	}
	next, stop, err := k.observe(name)
	if err != nil {
		return err
	}
	return until(next, stop, func() error { return k.write("level", "99") }, "99")
}

func alarmed(k *talk, name string) error {
	if k.subscribe == nil {
		return errNot
	}
	next, stop, err := k.subscribe(name)
	if err != nil {
		return err
	}
	return until(next, stop, func() error { _, err := k.invoke("ring", `"fire"`); return err }, `"fire"`)
}

// until makes something happen again and again until a listener hears it: when a subscription stands, not all protocols say.
func until(next func() (string, error), stop, make func() error, want string) error {
	heard := false
	over := false
	var mu sync.Mutex
	var work sync.WaitGroup
	var made error
	work.Go(func() {
		for {
			mu.Lock()
			end := over
			mu.Unlock()
			if end || made != nil {
				return
			}
			made = make()
			time.Sleep(20 * time.Millisecond)
		}
	})
	var err error
	var got string
	for end := time.Now().Add(patience); !heard && err == nil; {
		if got, err = next(); err == nil && time.Now().After(end) {
			err = fmt.Errorf("what comes is not %s but %s", want, got)
		}
		heard = err == nil && expect("", got, want) == nil
	}
	mu.Lock()
	over = true
	mu.Unlock()
	work.Wait()
	return errors.Join(err, made, stop())
}

// TestMatrix asks every operation, by every consumer's protocol, of an agent of every protocol, across two nodes.
func TestMatrix(t *testing.T) {
	m := newMesh(t)
	cells := map[string]string{} // by operation, consumer, agent
	var mu sync.Mutex
	for _, a := range agentBindings {
		a.start(t, m, "lamp-"+slug(a.name))
	}
	t.Run("cells", func(t *testing.T) {
		for _, a := range agentBindings {
			t.Run(a.name, func(t *testing.T) {
				t.Parallel() // the consumers of one lamp come one after the other: each looks at what it wrote
				for _, c := range consumerBindings {
					for name, cell := range m.fill(t, c, a) {
						mu.Lock()
						cells[name+"|"+c.name+"|"+a.name] = cell
						mu.Unlock()
					}
				}
			})
		}
	})
	table := write(cells)
	if *update {
		if err := os.WriteFile("../docs/interactions.md", table, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if have, err := os.ReadFile("../docs/interactions.md"); err != nil || !bytes.Equal(have, table) {
		t.Errorf("docs/interactions.md is not what was seen (%v): go test ./interop -run TestMatrix -update", err)
	}
}

func slug(name string) string {
	return strings.NewReplacer(" ", "-", "(", "", ")", "").Replace(name)
}

// fill tries all operations of one pair of protocols.
func (m *mesh) fill(t *testing.T, c consumerBinding, a agentBinding) map[string]string {
	cells := map[string]string{}
	m.known(t, "lamp-"+slug(a.name))
	k := c.open(t, m, "lamp-"+slug(a.name))
	if k.close != nil {
		defer k.close()
	}
	beside := openGo(t, m, "lamp-"+slug(a.name))
	if k.read == nil {
		k.write = nil
	}
	for _, o := range operations {
		if slices.Contains(a.lacks, o.needs) || slices.Contains(a.lacks, o.name) {
			cells[o.name] = "–"
			continue
		}
		err := try(o, k, beside)
		switch {
		case err == nil:
			cells[o.name] = "✓"
		case errors.Is(err, errNot):
			cells[o.name] = "–"
		default:
			cells[o.name] = "✗"
			t.Errorf("%s, %s to %s: %v", o.name, c.name, a.name, err)
		}
	}
	return cells
}

// try runs an operation. What only makes things happen goes beside a consumer whose protocol cannot do it.
func try(o operation, k, beside *talk) error {
	full := *k
	if strings.Contains(o.name, "observe") && full.write == nil {
		full.write = beside.write
	}
	if strings.Contains(o.name, "subscribe") && full.invoke == nil {
		full.invoke = beside.invoke
	}
	if o.name == "writeproperty" || o.name == "writemultipleproperties" || o.name == "writeallproperties" {
		full.read = beside.read
	}
	return o.try(&full)
}

// write makes the page of what was seen.
func write(cells map[string]string) []byte {
	var b bytes.Buffer
	b.WriteString(`# Interactions

What works between whom. The rows are operations of the Web of Things, the columns how an agent answers its node, and there is a
table for each protocol in which a consumer asks its own node. Agent and consumer are at different nodes. **✓** passed in a test,
**–** is not in that protocol. The test that writes this page, and fails if it is not so, is [interop](../interop):

` + "```console\n$ go test ./interop -run TestMatrix -update\n```\n")
	for _, c := range consumerBindings {
		fmt.Fprintf(&b, "\n## %s\n\n| operation |", c.name)
		for _, a := range agentBindings {
			fmt.Fprintf(&b, " %s |", a.name)
		}
		b.WriteString("\n|---|")
		b.WriteString(strings.Repeat("---|", len(agentBindings)))
		for _, o := range operations {
			fmt.Fprintf(&b, "\n| %s |", o.name)
			for _, a := range agentBindings {
				fmt.Fprintf(&b, " %s |", cells[o.name+"|"+c.name+"|"+a.name])
			}
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}
