package node

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lmosd/lmosd/audit"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/td"
)

// audited returns a running node with an audit log, and the lines of the log about a node after the end of both.
func audited(t *testing.T, o Options) (n *running, linesOf func(did.DID) []audit.Line) {
	t.Helper()
	o.Audit = audit.Options{Dir: t.TempDir()}
	n = start(t, o)
	return n, func(who did.DID) (lines []audit.Line) {
		t.Helper()
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
		for line, err := range audit.NewReader(o.Audit.Dir).New() {
			if err != nil {
				t.Fatal(err)
			}
			if line.Who == string(who) {
				lines = append(lines, line)
			}
		}
		return lines
	}
}

func timesOf(lines []audit.Line) (sum uint64) {
	for _, l := range lines {
		sum += l.Times
	}
	return sum
}

// 10,000 denied calls of one node are counted, and written to few lines. The denials of another node keep lines of their own, before, during and
// after them, and the calls of a member pass.
func TestFloodOfDenials(t *testing.T) {
	t.Parallel()
	flooder, other, member := start(t, quiet()), start(t, quiet()), start(t, quiet())
	o := quiet()
	o.Policy.Untrusted, o.Policy.Principal = access.UntrustedFind, members(member.DID())
	host, linesOf := audited(t, o)
	const actions = 500 // more than the lines of a node
	all := make([]string, actions)
	for i := range all {
		all[i] = fmt.Sprintf(`"act%d":{"synchronous":true}`, i)
	}
	draft, err := td.Draft([]byte(`{"id":"urn:x:coveted","title":"Coveted","actions":{` + strings.Join(all, ",") + `}}`))
	if err != nil {
		t.Fatal(err)
	}
	p, err := host.Offer(t.Context(), draft, interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return interact.One(m.Reply(interact.ActionStatus, "", nil))
	}))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []*running{flooder, other, member} {
		connect(t, n, host)
		knows(t, n, p.Ref)
	}
	call := func(n *running, i int) interact.Code {
		_, err := interact.Call(t.Context(), asConsumer(n), &interact.Message{Type: interact.InvokeAction, Thing: p.Ref, Name: fmt.Sprintf("act%d", i%actions)})
		return codeOf(err)
	}
	denied := func(n *running, i int) {
		if code := call(n, i); code != interact.Forbidden {
			t.Errorf("a denied call %d: %v", i, code)
		}
	}
	const calls, workers = 10_000, 8
	denied(other, 1)
	var flood sync.WaitGroup
	for w := range workers {
		flood.Go(func() {
			for i := w; i < calls && !t.Failed(); i += workers {
				denied(flooder, i)
			}
		})
	}
	flooded := make(chan struct{})
	go func() { flood.Wait(); close(flooded) }()
	served := 0
	for during := true; during; served++ {
		select {
		case <-flooded:
			during = false
		default:
		}
		if code := call(member, served); code != 0 {
			t.Fatalf("call %d of the member: %v", served, code)
		}
		if served == 10 {
			denied(other, 2)
		}
	}
	denied(other, 3)
	lines := linesOf(flooder.DID())
	if n := timesOf(lines); n != calls || len(lines) > calls/10 {
		t.Errorf("%d lines count %d denials", len(lines), n)
	}
	for _, name := range []string{"act1", "act2", "act3"} {
		if !slices.ContainsFunc(linesOf(other.DID()), func(l audit.Line) bool { return l.Name == name && l.Verdict == "deny" }) {
			t.Errorf("no line has the denial of %s: %+v", name, linesOf(other.DID()))
		}
	}
	t.Logf("%d calls of the member, %d lines of the flood", served, len(lines))
}

// A node that may not connect, and dials, is in the audit log, although its connections end before a stream is opened.
func TestRefusedConnectionsAreInTheAuditLog(t *testing.T) {
	t.Parallel()
	caller, admitted := start(t, quiet()), start(t, quiet())
	o := quiet()
	o.Policy = denying(caller.DID())
	host, linesOf := audited(t, o)
	connect(t, admitted, host)
	const dials = 5
	for range dials {
		wantCode(t, caller.Client().Connect(t.Context(), host.Addrs()[0]), interact.Forbidden)
	}
	lines := linesOf(caller.DID())
	if timesOf(lines) < dials {
		t.Errorf("the log has %+v", lines)
	}
	for _, l := range lines {
		if l.Op != string(access.Connect) || l.Verdict != "deny" || l.Code != interact.Forbidden.String() || l.Via != did.Peer {
			t.Errorf("a line is %+v", l)
		}
	}
	if lines := linesOf(admitted.DID()); len(lines) > 0 {
		t.Errorf("of a node that may connect: %+v", lines)
	}
}
