package delegation

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/ucan"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/stream/frame"
	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/policy/rules"
	"github.com/lmosd/lmosd/td"
)

var (
	hostKey, lenderKey, delegateKey, otherKey = didtest.Key(1), didtest.Key(2), didtest.Key(3), didtest.Key(4)
	host, lender, delegate, other             = hostKey.DID(), lenderKey.DID(), delegateKey.DID(), otherKey.DID()
)

const payout, ledger = "urn:x:payout", "urn:x:ledger"

// fixture is a host with two Things, and a lender that may invoke and delegate all of them.
type fixture struct {
	t            testing.TB
	policy       *policy.Policy
	host, lender *Delegations
	calls        func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] // of the agent
	ended        []string                                                                     // links that ended in use

	mu       sync.Mutex
	rules    []string
	standing map[did.DID]*did.Principal
	down     error // the host cannot be reached
}

func described(id string) *td.Description {
	name := strings.TrimPrefix(id, "urn:x:")
	return &td.Description{Thing: &td.Thing{ID: id, Title: name, Actions: map[string]*td.Action{"pay": {}, "Pay": {}, "close": {}},
		Properties: map[string]*td.Property{"sum": {}}, Events: map[string]*td.Event{"paid": {}}},
		Record: &td.Record{Hosts: []td.Host{{Node: host}}}}
}

func newFixture(t testing.TB, dirs ...string) *fixture {
	f := &fixture{t: t, standing: map[did.DID]*did.Principal{}, rules: []string{
		fmt.Sprintf("allow: %q, to: [invoke, read, subscribe, delegate], on: [payout, ledger]", lender)}}
	f.calls = func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			yield(&interact.Message{Type: interact.ActionStatus, Status: interact.StatusCompleted}, nil)
		}
	}
	f.policy = policy.New(policy.Rules{Options: rules.Options{Principal: f.principal,
		Group:        func(name string) (string, bool) { return name, name == "claims" },
		Organization: func(name string) (did.DID, bool) { return "did:web:acme.example", name == "acme" }, More: []func(*access.Builder) error{func(b *access.Builder) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			return b.AddYAML("policy.yaml", []byte("apiVersion: lmosd/v1\nrules:\n- {"+strings.Join(f.rules, "}\n- {")+"}\n"))
		}}}})
	f.policy.OnDelegationEnd(func(link string) { f.ended = append(f.ended, link) })
	f.load()
	dirs = append(dirs, "", "")
	f.host = f.open(dirs[0], hostKey)
	f.policy.UseDelegations(f.host)
	f.lender = f.open(dirs[1], lenderKey)
	return f
}

func (f *fixture) open(dir string, key did.Signer) *Delegations {
	f.t.Helper()
	d, err := Open(f.options(dir, key))
	if err != nil {
		f.t.Fatal(err)
	}
	return d
}

func (f *fixture) options(dir string, key did.Signer) Options {
	find := func(_ context.Context, ref string) (*td.Description, error) {
		if ref != payout && ref != ledger {
			return nil, interact.NotOffered(ref)
		}
		return described(ref), nil
	}
	return Options{Dir: dir, Signer: key, May: f.policy.MayDelegate, Find: find,
		Own: func(thing string) *td.Description {
			if key.DID() != host {
				return nil
			}
			d, _ := find(f.t.Context(), thing)
			return d
		},
		As: func(p *did.Principal) frame.As {
			if p.Via == did.Process {
				return frame.As{}
			}
			return frame.As{IsConsumer: true, Name: p.Name, Relation: did.Own}
		},
		Connect: func(context.Context, did.DID) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.down
		},
		Ask: func(ctx context.Context, to did.DID, body []byte) ([]byte, error) {
			if to != host {
				return nil, interact.Errorf(interact.Unreachable, "", "no such node")
			}
			return f.host.Serve(ctx, f.principal(key.DID()), body)
		},
		OnEnd: f.policy.EndDelegation, Record: func(string) {}}
}

func (f *fixture) principal(node did.DID) *did.Principal {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.standing[node]; p != nil {
		return p
	}
	return did.NodePrincipal(node, "")
}

// stands changes what a node is, as trust does.
func (f *fixture) stands(node did.DID, change func(p *did.Principal)) {
	p := did.NodePrincipal(node, "")
	change(p)
	f.mu.Lock()
	f.standing[node] = p
	f.mu.Unlock()
	f.policy.Recheck(node)
}

// load replaces the rules by more of them.
func (f *fixture) load(more ...string) {
	f.t.Helper()
	f.mu.Lock()
	f.rules = append(f.rules, more...)
	f.mu.Unlock()
	if err := f.policy.Load(); err != nil {
		f.t.Fatal(err)
	}
}

// unload takes all rules but one.
func (f *fixture) unload() {
	f.mu.Lock()
	f.rules = []string{"deny: anyone, to: write, on: payout"}
	f.mu.Unlock()
	f.load()
}

func process(ctx context.Context) context.Context { return did.AsProcess(ctx) }

func asked(change ...func(q *api.DelegationRequest)) api.DelegationRequest {
	q := api.DelegationRequest{Agent: payout, Name: "pay", To: delegate, Life: "10m"}
	for _, c := range change {
		c(&q)
	}
	return q
}

// lend delegates, with the links of the token: that of the host first.
func (f *fixture) lend(change ...func(q *api.DelegationRequest)) (*api.Delegation, [][]byte) {
	f.t.Helper()
	d, err := f.lender.Delegate(process(f.t.Context()), asked(change...))
	if err != nil {
		f.t.Fatal(err)
	}
	links, err := ucan.Unpack([]byte(d.Token))
	if err != nil || len(links) != 2 {
		f.t.Fatalf("%d links, %v", len(links), err)
	}
	if first, err := ucan.Parse(links[0]); err != nil || first.Delegation().Issuer != host {
		slices.Reverse(links)
	}
	return d, links
}

// do sends a message by links to a Thing of the host, and returns the last error.
func (f *fixture) do(m interact.Message, links [][]byte, thing string) (err error) {
	f.t.Helper()
	if m.From == nil {
		m.From = did.NodePrincipal(delegate, "")
	}
	if m.Type == 0 {
		m.Type, m.Name = interact.InvokeAction, "pay"
	}
	m.Thing = thing
	if links != nil {
		raw, wrong := ucan.Pack(ucan.Raw, links...)
		if wrong != nil {
			f.t.Fatal(wrong)
		}
		m.With = &interact.Capability{Tokens: raw}
	}
	d := described(thing)
	authorized := f.policy.Authorize(d.Thing, access.TargetOf(d.Thing, d.Name()), nil)(interact.Func(f.calls))
	authorized.Do(f.t.Context(), &m)(func(_ *interact.Message, e error) bool {
		err = e
		return e == nil
	})
	return err
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	raw, err := cbor.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func code(err error) interact.Code {
	if err == nil {
		return 0
	}
	return interact.AsError(err).Code
}

// signed returns a link.
func signed(t testing.TB, key did.Signer, to, subject did.DID, command string, expires time.Time, change ...func(d *ucan.Delegation)) []byte {
	t.Helper()
	d := ucan.Delegation{Audience: to, Subject: subject, Command: ucan.Command(command), Expires: expires.Truncate(time.Second)}
	for _, c := range change {
		c(&d)
	}
	token, err := d.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	return token.Bytes()
}

// Each case presents a delegation of payout/pay that is used in another way than it permits.
func TestRefusedUses(t *testing.T) {
	t.Parallel()
	const pay = "/lmos/invoke/urn%3ax%3apayout/pay"
	soon := func() time.Time { return time.Now().Add(10 * time.Minute) }
	as := func(p *did.Principal) interact.Message { return interact.Message{From: p} }
	for name, c := range map[string]struct {
		want  interact.Code // 0: allowed
		text  string        // in the error
		thing string
		m     interact.Message
		with  func(f *fixture, links [][]byte) [][]byte
		after time.Duration
		where []string
	}{
		"nothing wrong":             {},
		"a consumer of the node":    {m: as(did.NodePrincipal(delegate, "crm"))},
		"without a token":           {want: interact.Forbidden, with: func(*fixture, [][]byte) [][]byte { return nil }},
		"replayed by another node":  {want: interact.DelegationInvalid, text: "InvalidAudience", m: as(did.NodePrincipal(other, ""))},
		"by the lender itself":      {want: 0, m: as(did.NodePrincipal(lender, ""))}, // it has the right
		"by an anonymous consumer":  {want: interact.Forbidden, m: as(did.NodePrincipal(delegate, string(did.Unproven)))},
		"by a barred node":          {want: interact.NotFound, m: as(&did.Principal{DID: delegate, Node: delegate, Via: did.Peer, Barred: "revoked"})},
		"by a node that is pending": {want: interact.StatusUnknown, m: as(&did.Principal{DID: delegate, Node: delegate, Via: did.Peer, Pending: "no status"})},
		"of another action":         {want: interact.DelegationInvalid, text: "InvalidClaim", m: interact.Message{Type: interact.InvokeAction, Name: "close"}},
		"of a name in another case": {want: interact.DelegationInvalid, text: "InvalidClaim", m: interact.Message{Type: interact.InvokeAction, Name: "Pay"}},
		"of another operation":      {want: interact.DelegationInvalid, text: "InvalidClaim", m: interact.Message{Type: interact.ReadProperty, Name: "pay"}},
		"of all properties":         {want: interact.Forbidden, m: interact.Message{Type: interact.ReadAllProperties}},
		"of another Thing":          {want: interact.Forbidden, thing: ledger},
		"for another host": {want: interact.Forbidden, with: func(f *fixture, _ [][]byte) [][]byte {
			return [][]byte{signed(f.t, otherKey, lender, other, pay, soon()), signed(f.t, lenderKey, delegate, other, pay, soon())}
		}},
		"of another host, signed for this one": {want: interact.Forbidden, with: func(f *fixture, _ [][]byte) [][]byte {
			return [][]byte{signed(f.t, otherKey, lender, host, pay, soon()), signed(f.t, lenderKey, delegate, host, pay, soon())}
		}},
		"signed by the host, which does not keep it": {want: interact.Forbidden, with: func(f *fixture, _ [][]byte) [][]byte {
			return [][]byte{signed(f.t, hostKey, lender, host, pay, soon()), signed(f.t, lenderKey, delegate, host, pay, soon())}
		}},
		"widened": {want: interact.DelegationInvalid, text: "InvalidClaim", with: func(f *fixture, l [][]byte) [][]byte {
			return [][]byte{l[0], signed(f.t, lenderKey, delegate, host, "/lmos/invoke/urn%3ax%3apayout", soon())}
		}},
		"for another subject": {want: interact.DelegationInvalid, text: "InvalidSubject", with: func(f *fixture, l [][]byte) [][]byte {
			return [][]byte{l[0], signed(f.t, lenderKey, delegate, other, pay, soon())}
		}},
		"cyclic": {want: interact.DelegationInvalid, with: func(f *fixture, l [][]byte) [][]byte {
			return [][]byte{l[0], signed(f.t, lenderKey, lender, host, pay, soon())}
		}},
		"lent again": {want: interact.DelegationInvalid, text: "3 tokens", m: as(did.NodePrincipal(other, "")), with: func(f *fixture, l [][]byte) [][]byte {
			return append(l, signed(f.t, delegateKey, other, host, pay, soon()))
		}},
		"the first link alone":  {want: interact.DelegationInvalid, text: "1 tokens", with: func(_ *fixture, l [][]byte) [][]byte { return l[:1] }},
		"the second link alone": {want: interact.Forbidden, with: func(_ *fixture, l [][]byte) [][]byte { return l[1:] }},
		"the first link twice":  {want: interact.DelegationInvalid, with: func(_ *fixture, l [][]byte) [][]byte { return [][]byte{l[0], l[0]} }},
		"with an invocation": {want: interact.DelegationInvalid, text: "InvalidClaim", with: func(f *fixture, l [][]byte) [][]byte {
			i, err := ucan.Invocation{Subject: host, Command: pay, Expires: soon().Truncate(time.Second)}.Sign(delegateKey)
			if err != nil {
				f.t.Fatal(err)
			}
			return [][]byte{l[0], i.Bytes()}
		}},
		"with a wrong signature": {want: interact.DelegationInvalid, text: "InvalidSignature", with: func(_ *fixture, l [][]byte) [][]byte {
			forged := slices.Clone(l[1])
			forged[10] ^= 1
			return [][]byte{l[0], forged}
		}},
		"before its time": {want: interact.ClockSkew, text: "TooEarly", with: func(f *fixture, l [][]byte) [][]byte {
			return [][]byte{l[0], signed(f.t, lenderKey, delegate, host, pay, soon(), func(d *ucan.Delegation) { d.NotBefore = time.Now().Add(2 * time.Minute).Truncate(time.Second) })}
		}},
		"without an end": {want: interact.DelegationInvalid, with: func(f *fixture, l [][]byte) [][]byte {
			return [][]byte{l[0], signed(f.t, lenderKey, delegate, host, pay, time.Time{})}
		}},
		"before its end":             {after: 10*time.Minute - time.Second},
		"at its end":                 {want: interact.DelegationInvalid, text: "Expired", after: 10 * time.Minute},
		"after its end":              {want: interact.DelegationInvalid, text: "Expired", after: 12 * time.Minute},
		"an input that holds":        {where: []string{"amount<=100", "currency==EUR"}, m: interact.Message{Type: interact.InvokeAction, Name: "pay", Data: []byte(`{"amount":100,"currency":"EUR"}`)}},
		"an input that does not":     {want: interact.DelegationInvalid, text: "MatchError", where: []string{"amount<=100"}, m: interact.Message{Type: interact.InvokeAction, Name: "pay", Data: []byte(`{"amount":101}`)}},
		"a member that is missing":   {want: interact.DelegationInvalid, text: "MatchError", where: []string{"amount<=100"}, m: interact.Message{Type: interact.InvokeAction, Name: "pay", Data: []byte(`{}`)}},
		"a member twice":             {want: interact.DelegationInvalid, where: []string{"amount<=100"}, m: interact.Message{Type: interact.InvokeAction, Name: "pay", Data: []byte(`{"amount":1,"amount":101}`)}},
		"no input":                   {want: interact.DelegationInvalid, text: "MatchError", where: []string{"amount<=100"}},
		"an input in another format": {want: interact.DelegationInvalid, text: "JSON", where: []string{"amount<=100"}, m: interact.Message{Type: interact.InvokeAction, Name: "pay", ContentType: "text/plain", Data: []byte(`{"amount":1}`)}},
		"an input as a stream": {want: interact.DelegationInvalid, text: "stream", where: []string{"amount<=100"},
			m: interact.Message{Type: interact.InvokeAction, Name: "pay", Chunks: func(func([]byte, error) bool) {}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.load(`allow: anyone, to: find, on: [payout, ledger]`)
				_, links := f.lend(func(q *api.DelegationRequest) { q.Where = c.where })
				if c.with != nil {
					links = c.with(f, links)
				}
				time.Sleep(c.after)
				thing := payout
				if c.thing != "" {
					thing = c.thing
				}
				err := f.do(c.m, links, thing)
				if code(err) != c.want || c.text != "" && !strings.Contains(err.Error(), c.text) {
					t.Errorf("got %v, want %d with %q", err, c.want, c.text)
				}
			})
		})
	}
}

// A caller that may not find the Thing learns nothing from a token that this host did not issue.
func TestHiddenThings(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.load(`deny: anyone, to: find, on: payout`)
	_, links := f.lend()
	if err := f.do(interact.Message{From: did.NodePrincipal(other, "")}, links[1:], payout); code(err) != interact.NotFound {
		t.Errorf("a token without the link of the host: %v", err)
	}
}

// A rule of the host for the delegate wins over what it was lent.
func TestRulesForTheDelegateWin(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]string{
		"the call is denied":    fmt.Sprintf("deny: %q, to: invoke, on: payout", delegate),
		"the node is denied":    fmt.Sprintf("deny: %q, to: '*'", delegate),
		"it may not connect":    fmt.Sprintf("deny: %q, to: connect", delegate),
		"all calls are denied":  "deny: untrusted, to: call, on: payout/pay",
		"a condition is broken": fmt.Sprintf("deny: %q, to: invoke, on: payout, when: 'context.input.n < 5'", delegate),
	} {
		f := newFixture(t)
		f.load("allow: anyone, to: find, on: payout")
		_, links := f.lend()
		f.load(rule)
		if err := f.do(interact.Message{}, links, payout); err == nil || code(err) == interact.DelegationInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Only a caller with the right and the right to delegate it lends.
func TestRefusedDelegations(t *testing.T) {
	t.Parallel()
	set := func(change func(q *api.DelegationRequest)) func(*api.DelegationRequest) { return change }
	for name, c := range map[string]struct {
		who  *did.Principal
		q    func(q *api.DelegationRequest)
		rule string
		want interact.Code
		text string
	}{
		"a consumer without the rights of the node": {who: did.Consumer(did.Loopback, ""), rule: fmt.Sprintf("deny: %q, to: delegate", string(lender)), want: interact.Forbidden},
		"a token":                        {who: did.Consumer(did.Token, "crm"), want: interact.Forbidden, text: "may not delegate"},
		"an unproven consumer":           {who: did.Consumer(did.Unproven, ""), want: interact.Forbidden, text: "may not delegate"},
		"the session of an unproven one": {who: did.Consumer(did.Unproven, "").InSession(time.Time{}), want: interact.Forbidden, text: "may not delegate"},
		"another node":                   {who: did.NodePrincipal(other, ""), want: interact.Forbidden, text: "may not delegate"},
		"no right to delegate":           {rule: fmt.Sprintf("deny: %q, to: delegate", lender), want: interact.Forbidden, text: "may not delegate"},
		"no right to call":               {rule: fmt.Sprintf("deny: %q, to: invoke", lender), want: interact.Forbidden, text: "may not invoke"},
		"a right that it has not":        {q: set(func(q *api.DelegationRequest) { q.Op, q.Name = "write", "sum" }), want: interact.Forbidden, text: "may not"},
		"a Thing that does not exist":    {q: set(func(q *api.DelegationRequest) { q.Agent = "urn:x:other" }), want: interact.NotFound},
		"another kind of operation":      {q: set(func(q *api.DelegationRequest) { q.Op = "delegate" }), want: interact.Usage},
		"all operations":                 {q: set(func(q *api.DelegationRequest) { q.Op = "*" }), want: interact.Usage},
		"no affordance":                  {q: set(func(q *api.DelegationRequest) { q.Name = "" }), want: interact.Usage},
		"no delegate":                    {q: set(func(q *api.DelegationRequest) { q.To = "" }), want: interact.Usage},
		"a delegate without a key":       {q: set(func(q *api.DelegationRequest) { q.To = "did:web:example.com" }), want: interact.Usage, text: "did:key"},
		"itself":                         {q: set(func(q *api.DelegationRequest) { q.To = lender }), want: interact.Usage, text: "this node"},
		"the host":                       {q: set(func(q *api.DelegationRequest) { q.To = host }), want: interact.Usage, text: "host"},
		"no time":                        {q: set(func(q *api.DelegationRequest) { q.Life = "" }), want: interact.Usage, text: "30 days"},
		"less than a second":             {q: set(func(q *api.DelegationRequest) { q.Life = "10ms" }), want: interact.Usage, text: "30 days"},
		"more than 30 days":              {q: set(func(q *api.DelegationRequest) { q.Life = "720h1s" }), want: interact.Usage, text: "30 days"},
		"a year":                         {q: set(func(q *api.DelegationRequest) { q.Life = "8760h" }), want: interact.Usage, text: "30 days"},
		"a condition without a value":    {q: set(func(q *api.DelegationRequest) { q.Where = []string{"amount"} }), want: interact.Usage, text: "a condition is"},
		"a condition without a name":     {q: set(func(q *api.DelegationRequest) { q.Where = []string{"<=1"} }), want: interact.Usage},
		"a comparison of words":          {q: set(func(q *api.DelegationRequest) { q.Where = []string{"amount<=many"} }), want: interact.Usage},
		"a long condition":               {q: set(func(q *api.DelegationRequest) { q.Where = []string{"a==" + strings.Repeat("x", 512)} }), want: interact.Usage, text: "512"},
		"a condition of one sign":        {q: set(func(q *api.DelegationRequest) { q.Where = []string{"amount=100"} }), want: interact.Usage},
		"more conditions than permitted": {q: set(func(q *api.DelegationRequest) { q.Where = slices.Repeat([]string{"a==1"}, 17) }), want: interact.Usage, text: "16"},
	} {
		f := newFixture(t)
		f.load("allow: anyone, to: find, on: [payout, ledger]")
		if c.rule != "" {
			f.load(c.rule)
		}
		ctx := process(t.Context())
		if c.who != nil {
			ctx = did.WithPrincipal(t.Context(), c.who)
		}
		q := asked()
		if c.q != nil {
			c.q(&q)
		}
		d, err := f.lender.Delegate(ctx, q)
		if code(err) != c.want || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, %v", name, d, err)
		}
		if n := len(f.host.Issued()); n != 0 {
			t.Errorf("%s: the host keeps %d delegations", name, n)
		}
	}
	if _, err := newFixture(t).lender.Delegate(t.Context(), asked()); code(err) != interact.Forbidden {
		t.Errorf("without a caller: %v", err)
	}
}

// What runs by a delegation ends with it, in each way in which a delegation ends.
func TestEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(f *fixture, d *api.Delegation)
		want interact.Code
		text string
	}{
		"with its time": {func(*fixture, *api.Delegation) { time.Sleep(10 * time.Minute) }, interact.DelegationInvalid, "Expired"},
		"revoked by the lender": {func(f *fixture, d *api.Delegation) {
			if _, err := f.lender.Revoke(process(f.t.Context()), d.ID); err != nil {
				f.t.Error(err)
			}
		}, interact.Forbidden, ""},
		"revoked by the host": {func(f *fixture, _ *api.Delegation) {
			if _, err := f.host.Revoke(process(f.t.Context()), f.host.Issued()[0].ID); err != nil {
				f.t.Error(err)
			}
		}, interact.Forbidden, ""},
		"the lender loses the right": {func(f *fixture, _ *api.Delegation) {
			f.load(fmt.Sprintf("deny: %q, to: subscribe, on: payout", lender))
		}, interact.DelegationInvalid, "may not subscribe"},
		"the lender may not delegate any more": {func(f *fixture, _ *api.Delegation) {
			f.load(fmt.Sprintf("deny: %q, to: delegate, on: payout", lender))
		}, interact.DelegationInvalid, "may not delegate"},
		"the rule is gone":     {func(f *fixture, _ *api.Delegation) { f.unload(); f.policy.Recheck("") }, interact.DelegationInvalid, "may not"},
		"the lender is barred": {func(f *fixture, _ *api.Delegation) { f.stands(lender, func(p *did.Principal) { p.Barred = "revoked" }) }, interact.DelegationInvalid, "may not"},
		"the delegate is barred": {func(f *fixture, _ *api.Delegation) {
			f.stands(delegate, func(p *did.Principal) { p.Barred = "revoked" })
		}, interact.NotFound, ""},
		"the lender may not connect": {func(f *fixture, _ *api.Delegation) { f.load(fmt.Sprintf("deny: %q, to: connect", lender)) }, interact.DelegationInvalid, "may not connect"},
		"a rule denies the delegate": {func(f *fixture, _ *api.Delegation) {
			f.load(fmt.Sprintf("deny: %q, to: subscribe, on: payout", delegate))
		}, interact.Forbidden, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.load("allow: anyone, to: find, on: payout", fmt.Sprintf("allow: %q, to: '*', on: ledger", other))
				d, links := f.lend(func(q *api.DelegationRequest) { q.Op, q.Name = "subscribe", "paid" })
				var lent *did.Lent
				f.calls = func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
					return func(yield func(*interact.Message, error) bool) {
						if lent = m.From.Lent; m.With != nil {
							t.Error("the agent receives the token")
						}
						<-ctx.Done()
						yield(nil, context.Cause(ctx))
					}
				}
				got := make(chan error, 1)
				go func() { got <- f.do(interact.Message{Type: interact.SubscribeEvent, Name: "paid"}, links, payout) }()
				synctest.Wait()
				select {
				case err := <-got:
					t.Fatalf("it ended before: %v", err)
				default:
				}
				if lent == nil || lent.By != lender || lent.Lender() != string(lender) || !lent.Expires.Equal(d.Expires) {
					t.Errorf("the agent receives %+v", lent)
				}
				f.stands(other, func(p *did.Principal) { p.Barred = "revoked" }) // concerns neither
				synctest.Wait()
				if len(got) > 0 {
					t.Errorf("it ended with the standing of a third node: %v", <-got)
				}
				c.end(f, d)
				synctest.Wait()
				if len(got) == 0 {
					t.Fatal("it goes on")
				}
				if err := <-got; code(err) != c.want || !strings.Contains(err.Error(), c.text) {
					t.Errorf("got %v, want %d with %q", err, c.want, c.text)
				}
			})
		})
	}
}

// A run ends with its delegation. Its caller may query and cancel it without a token, also when the delegation has ended, and another caller may not.
func TestRuns(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.load("allow: anyone, to: find, on: payout")
	d, links := f.lend()
	f.calls = func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			yield(&interact.Message{Type: interact.ActionStatus, Status: interact.StatusRunning, ActionID: "run1"}, nil)
		}
	}
	if err := f.do(interact.Message{}, links, payout); err != nil {
		t.Fatal(err)
	}
	about := func(typ interact.Type, id string, who did.DID, name string) error {
		return f.do(interact.Message{Type: typ, Name: "pay", ActionID: id, From: did.NodePrincipal(who, name)}, nil, payout)
	}
	if _, err := f.lender.Revoke(process(t.Context()), d.ID); err != nil {
		t.Fatal(err)
	}
	if len(f.ended) != 1 || f.ended[0] != ucan.CIDOf(links[0]).String() {
		t.Errorf("the delegations that ended in use: %v", f.ended)
	}
	for _, typ := range []interact.Type{interact.QueryAction, interact.CancelAction} {
		if err := about(typ, "run1", delegate, ""); err != nil {
			t.Errorf("%d: %v", typ, err)
		}
		for name, err := range map[string]error{"another run": about(typ, "run2", delegate, ""), "another caller": about(typ, "run1", other, ""),
			"another consumer": about(typ, "run1", delegate, "crm"), "no run": about(typ, "", delegate, "")} {
			if code(err) != interact.Forbidden {
				t.Errorf("%d of %s: %v", typ, name, err)
			}
		}
	}
	if err := f.do(interact.Message{Type: interact.QueryAction, Name: "pay", ActionID: "run1"}, links, payout); err != nil {
		t.Errorf("a query with the token that has ended: %v", err)
	}
	if err := about(interact.ContinueAction, "run1", delegate, ""); code(err) != interact.Forbidden {
		t.Errorf("an input for the run after the end: %v", err)
	}
	// A new run takes inputs by a delegation, and an other run does not.
	_, links = f.lend()
	if err := f.do(interact.Message{}, links, payout); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]interact.Code{"run1": 0, "run2": interact.DelegationInvalid} {
		if err := f.do(interact.Message{Type: interact.ContinueAction, Name: "pay", ActionID: id}, links, payout); code(err) != want {
			t.Errorf("an input for %s: %v", id, err)
		}
	}
	// A run that begins after the revocation, of a call that was permitted before, ends too.
	_, links = f.lend()
	f.calls = func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			if _, err := f.lender.Revoke(process(t.Context()), f.lender.List()[1].ID); err != nil {
				t.Error(err)
			}
			f.ended = nil
			yield(&interact.Message{Type: interact.ActionStatus, Status: interact.StatusRunning, ActionID: "run3"}, nil)
		}
	}
	_ = f.do(interact.Message{}, links, payout)
	if len(f.ended) != 1 {
		t.Errorf("a run after the revocation: %v", f.ended)
	}
}

// A host and a lender keep what they know over a restart. The lender has no more rights than those of now.
func TestRestart(t *testing.T) {
	t.Parallel()
	dirs := []string{t.TempDir(), t.TempDir()}
	f := newFixture(t, dirs...)
	d, links := f.lend()
	f.host, f.lender = f.open(dirs[0], hostKey), f.open(dirs[1], lenderKey)
	f.policy.UseDelegations(f.host)
	if err := f.do(interact.Message{}, links, payout); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	if got := f.lender.List(); len(got) != 1 || got[0].ID != d.ID || got[0].Token != "" {
		t.Errorf("the lender lists %+v", got)
	}
	if got := f.host.Issued(); len(got) != 1 || got[0].By != string(lender) || got[0].To != "" || got[0].Thing != payout || !got[0].Expires.Equal(d.Expires) {
		t.Errorf("the host lists %+v", got)
	}
	f.stands(lender, func(p *did.Principal) { p.Barred = "revoked" })
	if err := f.do(interact.Message{}, links, payout); code(err) != interact.DelegationInvalid {
		t.Errorf("the lender is barred: %v", err)
	}
	f.stands(lender, func(*did.Principal) {})
	if _, err := f.lender.Revoke(process(t.Context()), d.ID); err != nil {
		t.Fatal(err)
	}
	f.host = f.open(dirs[0], hostKey)
	f.policy.UseDelegations(f.host)
	if err := f.do(interact.Message{}, links, payout); err == nil || len(f.host.Issued()) != 0 {
		t.Errorf("a revoked delegation counts after a restart")
	}
}

// A consumer of a member lends what its node has as a member, here by a role. After a restart the host does not know the node, until it connects.
func TestMembersAfterARestart(t *testing.T) {
	t.Parallel()
	dirs := []string{t.TempDir(), t.TempDir()}
	f := newFixture(t, dirs...)
	f.unload()
	f.load("allow: acme/clerk, to: invoke, on: payout", "allow: group:claims, to: delegate, on: payout", "allow: anyone, to: find, on: payout")
	partner := func(p *did.Principal) {
		p.Relation, p.Org, p.Roles = did.Partner, "did:web:acme.example", []string{"clerk", "chief"}
		p.Groups = []did.Membership{{Group: "claims", Role: "member", Org: "did:web:acme.example"}}
	}
	f.stands(lender, partner)
	_, links := f.lend()
	f.host = f.open(dirs[0], hostKey)
	f.policy.UseDelegations(f.host)
	f.stands(lender, func(*did.Principal) {})
	if err := f.do(interact.Message{}, links, payout); code(err) != interact.DelegationInvalid || !strings.Contains(interact.AsError(err).Hint, "connect") {
		t.Errorf("the lender is unknown: %v", err)
	}
	f.stands(lender, func(p *did.Principal) {
		p.Pending, p.Unconfirmed = "no status", did.NodePrincipal(lender, "")
		partner(p.Unconfirmed)
	})
	if err := f.do(interact.Message{}, links, payout); code(err) != interact.StatusUnknown {
		t.Errorf("the lender is not confirmed: %v", err)
	}
	f.stands(lender, partner)
	if err := f.do(interact.Message{}, links, payout); err != nil {
		t.Errorf("the lender is back: %v", err)
	}
}

func TestDamagedFile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, text := range map[string]string{"no JSON": "{", "another version": `{"version":2}`, "a wrong link": `{"version":1,"issued":[{"link":"x"}]}`, "null": `{"version":1,"issued":[null]}`,
		"no id": `{"version":1,"lent":[{}]}`} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "delegations.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(f.options(dir, hostKey)); code(err) != interact.StoreCorrupt {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A delegation that the lender cannot store does not stay at the host.
func TestNothingIsLostByAFullDisk(t *testing.T) {
	t.Parallel()
	dirs := []string{t.TempDir(), filepath.Join(t.TempDir(), "gone")}
	f := newFixture(t, dirs...)
	if _, err := f.lender.Delegate(process(t.Context()), asked()); err == nil {
		t.Fatal("it is delegated without a file")
	}
	if n := len(f.host.Issued()); n != 0 || len(f.lender.List()) != 0 {
		t.Errorf("the host keeps %d", n)
	}
	// A host that cannot store the end of a delegation says so, and is asked again.
	dirs = []string{t.TempDir(), ""}
	f = newFixture(t, dirs...)
	d, _ := f.lend()
	path := f.host.o.Dir
	f.host.o.Dir = filepath.Join(path, "gone")
	for range 2 {
		if err := f.lender.revokeAtHost(process(t.Context()), f.lender.lent[0]); err == nil {
			t.Error("the host has not stored the end")
		}
	}
	if r, err := f.lender.Revoke(process(t.Context()), d.ID); err != nil || !r.Revoking {
		t.Errorf("%+v, %v", r, err)
	}
	f.host.o.Dir = path
	if err := f.lender.revokeAtHost(process(t.Context()), f.lender.lent[0]); err != nil || len(f.open(path, hostKey).Issued()) != 0 {
		t.Errorf("the host stores the end: %v", err)
	}
	f = newFixture(t, filepath.Join(t.TempDir(), "gone"))
	if _, err := f.lender.Delegate(process(t.Context()), asked()); err == nil || len(f.host.Issued()) != 0 || len(f.lender.List()) != 0 {
		t.Errorf("the host cannot store: %v", err)
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		for range maxPerLender {
			f.lend()
		}
		if _, err := f.lender.Delegate(process(t.Context()), asked()); code(err) != interact.Overloaded {
			t.Errorf("one more of a lender: %v", err)
		}
		time.Sleep(10*time.Minute + skew + time.Second)
		f.lend()
		if n := len(f.host.issued); n != 1 {
			t.Errorf("the host keeps %d delegations, of which one has not ended", n)
		}
	})
}

// A revocation that the host does not receive is repeated, also after a restart of the lender.
func TestRevocationsAreRepeated(t *testing.T) {
	t.Parallel()
	dirs := []string{"", t.TempDir()}
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, dirs...)
		d, links := f.lend()
		f.down = interact.Errorf(interact.Unreachable, "", "the host is down")
		r, err := f.lender.Revoke(process(t.Context()), d.ID)
		if err != nil || !r.Revoking {
			t.Fatalf("%+v, %v", r, err)
		}
		if l := f.lender.List(); len(l) != 1 || !l[0].Revoking {
			t.Errorf("%+v", l)
		}
		if err := f.do(interact.Message{}, links, payout); err != nil {
			t.Errorf("the host knows: %v", err)
		}
		f.lender = f.open(dirs[1], lenderKey)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.lender.Run(ctx) }()
		time.Sleep(2 * repeat)
		f.mu.Lock()
		f.down = nil
		f.mu.Unlock()
		time.Sleep(2 * repeat)
		synctest.Wait()
		if r, err := f.lender.Revoke(process(t.Context()), d.ID); code(err) != interact.NotFound {
			t.Errorf("it is revoked again: %+v, %v", r, err)
		}
		if err := f.do(interact.Message{}, links, payout); err == nil || len(f.lender.List()) != 0 {
			t.Errorf("the host does not know: %+v", f.lender.List())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A revocation that is not confirmed may be entered again.
func TestRevokeTwice(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d, _ := f.lend()
	f.down = interact.Errorf(interact.Unreachable, "", "the host is down")
	for range 2 {
		if r, err := f.lender.Revoke(process(t.Context()), d.ID); err != nil || !r.Revoking {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	f.down = nil
	if r, err := f.lender.Revoke(process(t.Context()), d.ID); err != nil || r.Revoking || len(f.lender.List()) != 0 || len(f.host.Issued()) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// A condition of a rule for the delegator is on its own calls: it cannot be decided for others.
func TestConditionsOfTheDelegator(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.load("allow: anyone, to: find, on: payout")
	_, links := f.lend()
	f.load(fmt.Sprintf("deny: %q, to: invoke, on: payout, when: 'context.input.n > 100'", lender))
	if err := f.do(interact.Message{Type: interact.InvokeAction, Name: "pay", Data: []byte(`{"n":5}`)}, links, payout); code(err) != interact.DelegationInvalid {
		t.Errorf("got %v", err)
	}
}

func TestRevokeByID(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, _ := f.lend()
	f.lend()
	for id, want := range map[string]interact.Code{"": interact.NotFound, "zdpu": interact.NotFound, a.ID + "x": interact.NotFound, "zdpuAAAAAAAAAAAAAAAAA": interact.NotFound} {
		if _, err := f.lender.Revoke(t.Context(), id); code(err) != want {
			t.Errorf("%q: %v", id, err)
		}
	}
	f.lender.mu.Lock()
	f.lender.lent[1].ID = a.ID[:len(a.ID)-1] + "0" // base58 has no zero
	f.lender.mu.Unlock()
	if _, err := f.lender.Revoke(t.Context(), a.ID[:20]); code(err) != interact.Ambiguous {
		t.Errorf("the beginning of two ids: %v", err)
	}
	if _, err := f.lender.Revoke(t.Context(), a.ID); err != nil {
		t.Error(err)
	}
	if l := f.lender.List(); len(l) != 1 || len(f.host.Issued()) != 1 {
		t.Errorf("%+v", l)
	}
}

// The longest life is permitted, also if the clock of the host is behind.
func TestLongestDelegation(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.lend(func(q *api.DelegationRequest) { q.Life = "720h" })
	f.host.o.Now = func() time.Time { return time.Now().Add(-30 * time.Second) }
	f.lend(func(q *api.DelegationRequest) { q.Life = "720h" })
}

// A consumer of the host lends by one link.
func TestLocalLender(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.load("allow: anyone, to: find, on: payout")
	ctx := did.WithPrincipal(t.Context(), did.Consumer(did.Socket, "uid:1000"))
	d, err := f.host.Delegate(ctx, asked())
	if err != nil {
		t.Fatal(err)
	}
	links, err := ucan.Unpack([]byte(d.Token))
	if err != nil || len(links) != 1 || d.By != "local#uid:1000" {
		t.Fatalf("%+v, %d links, %v", d, len(links), err)
	}
	if err := f.do(interact.Message{}, links, payout); err != nil {
		t.Error(err)
	}
	if err := f.do(interact.Message{From: did.NodePrincipal(other, "")}, links, payout); code(err) != interact.DelegationInvalid {
		t.Errorf("another node: %v", err)
	}
	further := append(slices.Clone(links), signed(t, delegateKey, other, host, "/lmos/invoke/urn%3ax%3apayout/pay", time.Now().Add(time.Minute)))
	if err := f.do(interact.Message{From: did.NodePrincipal(other, "")}, further, payout); code(err) != interact.DelegationInvalid {
		t.Errorf("lent again: %v", err)
	}
	if _, err := f.host.Revoke(ctx, d.ID); err != nil || len(f.host.Issued()) != 0 || len(f.host.List()) != 0 {
		t.Errorf("revoked: %v", err)
	}
	if err := f.do(interact.Message{}, links, payout); code(err) != interact.Forbidden {
		t.Errorf("after the revocation: %v", err)
	}
}

// A caller with a right of its own uses this one, also if it shows a token: what runs ends with this right.
func TestOwnRightsComeFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		_, links := f.lend(func(q *api.DelegationRequest) { q.Op, q.Name = "subscribe", "paid" })
		own := fmt.Sprintf("allow: %q, to: subscribe, on: payout", delegate)
		f.load("allow: anyone, to: find, on: payout", own)
		f.calls = func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				if m.From.Lent != nil || m.With != nil {
					t.Error("the delegation is used")
				}
				<-ctx.Done()
			}
		}
		got := make(chan error, 1)
		go func() { got <- f.do(interact.Message{Type: interact.SubscribeEvent, Name: "paid"}, links, payout) }()
		synctest.Wait()
		f.mu.Lock()
		f.rules = slices.DeleteFunc(f.rules, func(r string) bool { return r == own })
		f.mu.Unlock()
		f.load()
		if err := <-got; code(err) != interact.Forbidden {
			t.Errorf("without its right: %v", err)
		}
	})
}

// Requests of nodes that did not come from Delegate or Revoke.
func TestServe(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.lend()
	link := f.lender.lent[0].First
	expires := time.Now().Add(time.Minute).Unix()
	for name, c := range map[string]struct {
		from did.DID
		q    request
		want interact.Code
	}{
		"a revocation of another node":   {other, request{Op: opRevoke, Link: link[:]}, 0},
		"of an unknown link":             {lender, request{Op: opRevoke, Link: make([]byte, 32)}, 0},
		"of no link":                     {lender, request{Op: opRevoke}, interact.Invalid},
		"an unknown operation":           {lender, request{Op: 9}, interact.Invalid},
		"an end in the past":             {lender, request{Op: opIssue, Thing: payout, Operation: "invoke", Name: "pay", Expires: 1}, interact.ClockSkew},
		"an end in a year":               {lender, request{Op: opIssue, Thing: payout, Operation: "invoke", Name: "pay", Expires: expires + 365*86400}, interact.ClockSkew},
		"a Thing of another node":        {lender, request{Op: opIssue, Thing: "urn:x:other", Operation: "invoke", Name: "pay", Expires: expires}, interact.NotFound},
		"without rights":                 {other, request{Op: opIssue, Thing: payout, Operation: "invoke", Name: "pay", Expires: expires}, interact.Forbidden},
		"a right to delegate":            {lender, request{Op: opIssue, Thing: payout, Operation: "delegate", Name: "pay", Expires: expires}, interact.Invalid},
		"a whole Thing":                  {lender, request{Op: opIssue, Thing: payout, Operation: "invoke", Expires: expires}, interact.Invalid},
		"a malformed name of a consumer": {lender, request{Op: opIssue, As: statement{Consumer: true, Name: "a#b"}, Thing: payout, Operation: "invoke", Name: "pay", Expires: expires}, interact.Invalid},
	} {
		_, err := f.host.Serve(t.Context(), did.NodePrincipal(c.from, ""), encode(t, &c.q))
		if code(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(f.host.Issued()); n != 1 {
		t.Errorf("the host has %d delegations", n)
	}
}

// An answer of a host that is not the delegation of the request is refused.
func TestForgedAnswers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const pay = "/lmos/invoke/urn%3ax%3apayout/pay"
	in := time.Now().Add(time.Hour)
	for name, token := range map[string][]byte{"nothing": nil, "no token": {1}, "of another key": signed(t, otherKey, lender, host, pay, in),
		"for another node": signed(t, hostKey, other, host, pay, in), "of another action": signed(t, hostKey, lender, host, pay+"2", in)} {
		o := f.options("", lenderKey)
		o.Ask = func(context.Context, did.DID, []byte) ([]byte, error) { return encode(t, &response{Token: token}), nil }
		d, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Delegate(process(t.Context()), asked()); code(err) != interact.DelegationInvalid || len(d.List()) != 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestConditions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct{ holds, fails string }{
		`amount<=100`:     {`{"amount":100}`, `{"amount":101}`},
		`amount < 100`:    {`{"amount":99}`, `{"amount":100}`},
		`currency==EUR`:   {`{"currency":"EUR"}`, `{"currency":"USD"}`},
		`code=="50"`:      {`{"code":"50"}`, `{"code":50}`},
		`code=="a<=b"`:    {`{"code":"a<=b"}`, `{"code":"a"}`},
		`code==x","y":"z`: {`{"code":"x\",\"y\":\"z"}`, `{"code":"x"}`},
		`a.b!=1`:          {`{"a":{"b":2}}`, `{"a":{"b":1}}`},
		`a=={"value":1}`:  {`{"a":{"value":1}}`, `{"a":1}`},
		`value>=5`:        {`5`, `4`},
		`express==true`:   {`{"express":true}`, `{"express":"true"}`},
	} {
		f := newFixture(t)
		f.load("allow: anyone, to: find, on: payout")
		_, links := f.lend(func(q *api.DelegationRequest) { q.Where = []string{text} })
		for input, code0 := range map[string]interact.Code{want.holds: 0, want.fails: interact.DelegationInvalid} {
			if err := f.do(interact.Message{Type: interact.InvokeAction, Name: "pay", Data: []byte(input)}, links, payout); code(err) != code0 {
				t.Errorf("%s with %s: %v", text, input, err)
			}
		}
	}
}

func FuzzServe(f *testing.F) {
	link := ucan.CID{1}
	for _, q := range []*request{{Op: opIssue, As: statement{Consumer: true, Name: "crm", Roles: "*"}, Thing: payout, Operation: "invoke", Name: "pay", Expires: 1 << 40},
		{Op: opRevoke, Link: link[:]}} {
		f.Add(encode(f, q))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		x := newFixture(t)
		answer, err := x.host.Serve(t.Context(), did.NodePrincipal(lender, ""), body)
		if e := (*interact.Error)(nil); err != nil && !errors.As(err, &e) {
			t.Errorf("not an error of lmosd: %v", err)
		}
		if issued := slices.Collect(maps.Values(x.host.issued)); err == nil && len(issued) == 1 && len(answer) > 0 &&
			(issued[0].By.Node != lender || !slices.Contains(ops, issued[0].Op)) {
			t.Errorf("issued %+v", issued[0])
		}
	})
}

// The same call by a rule for the caller, and by a delegation that was seen before.
func BenchmarkAuthorize(b *testing.B) {
	f := newFixture(b)
	f.load("allow: anyone, to: find, on: payout", fmt.Sprintf("allow: %q, to: invoke, on: payout", other))
	_, links := f.lend()
	_, limited := f.lend(func(q *api.DelegationRequest) { q.Where = []string{"amount<=100"} })
	d := described(payout)
	authorized := f.policy.Authorize(d.Thing, access.TargetOf(d.Thing, d.Name()), nil)(interact.Func(f.calls))
	for name, c := range map[string]struct {
		from  did.DID
		links [][]byte
	}{"rule": {other, nil}, "delegation": {delegate, links}, "where": {delegate, limited}} {
		b.Run(name, func(b *testing.B) {
			m := &interact.Message{Type: interact.InvokeAction, Thing: payout, Name: "pay", From: did.NodePrincipal(c.from, ""), Data: []byte(`{"amount":99}`)}
			if c.links != nil {
				raw, err := ucan.Pack(ucan.Raw, c.links...)
				if err != nil {
					b.Fatal(err)
				}
				m.With = &interact.Capability{Tokens: raw}
			}
			b.ReportAllocs()
			for b.Loop() {
				for _, err := range authorized.Do(b.Context(), m) {
					if err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
