package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/directory/directorytest"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/policy/rules"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/trust"
)

const (
	benchOrg   = did.DID("did:webvh:QmPEQVM1JPTyrvEgBcDXwjK4TeyLGSX1PxjgyeAisdWM1p:acme.example")
	benchLists = "https://acme.example/status/i1"
	benchNode  = did.DID("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH")
	nThings    = 10_000
)

// benchCaller is a member of a partner.
var benchCaller = &did.Principal{DID: benchNode, Node: benchNode, Via: did.Peer, Org: benchOrg, Roles: []string{"node", "customer-service"}, Relation: did.Partner}

// trustTable measures what a decision, a credential and the audience of descriptions cost. The times are processor times of one thread, which
// other load of the machine hardly affects.
func trustTable(ctx context.Context, p plan) error {
	if err := decisions(p); err != nil {
		return err
	}
	if err := credentials(ctx, p); err != nil {
		return err
	}
	return audiences(ctx, p)
}

// threadTimeOf returns the median processor time of one call of f, in microseconds.
func (p plan) threadTimeOf(f func()) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all []time.Duration
	for range p.rounds {
		n := 0
		for start, before := time.Now(), threadTime(); ; {
			for range 8 {
				f()
			}
			if n += 8; time.Since(start) >= p.length/4 {
				all = append(all, (threadTime()-before)/time.Duration(n))
				break
			}
		}
	}
	return median(all, func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 })
}

// threadTime returns the processor time of the thread.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

// benchSet compiles rules.
func benchSet(rules string) (*access.Set, error) {
	b := access.NewBuilder(access.Options{Untrusted: access.UntrustedFind, Organization: func(name string) (did.DID, bool) { return benchOrg, name == "acme" }})
	err := b.AddYAML("policy.yaml", []byte("apiVersion: lmosd/v1\nrules:\n"+rules))
	return b.Build(), err
}

// decisions measures a call that one of the rules allows.
func decisions(p plan) error {
	allow := func(n int) string {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, "  - {allow: acme/customer-service, to: [find, invoke], on: thing-%d/track}\n", i)
		}
		return text.String()
	}
	var denies strings.Builder
	for range 1000 {
		key, err := keystore.New()
		if err != nil {
			return err
		}
		fmt.Fprintf(&denies, "  - {deny: '%s', to: '*'}\n", key.DID())
	}
	p.table("decision on a call, uncached | processor time")
	for _, c := range []struct{ name, rules string }{
		{"5 rules", allow(5)}, {"1,000 rules", allow(1000)}, {"5 rules, and 1,000 that deny everything to a node each", allow(5) + denies.String()},
		{"5 rules, one with a condition", allow(4) + "  - {allow: acme, to: invoke, on: thing-4, when: 'context.hops < 3'}\n"},
	} {
		s, err := benchSet(c.rules)
		if err != nil {
			return err
		}
		r := access.Request{Op: access.Invoke, Affordance: "track", Now: time.Now(),
			Target: &access.Target{ID: "urn:x:4", Names: []string{"thing-4"}, Capabilities: td.Prefixes("urn:example:catalogue")}}
		if d := s.Decide(benchCaller, r); !d.Allow {
			return fmt.Errorf("%s: %s", c.name, d.Why())
		}
		took := p.threadTimeOf(func() { s.Decide(benchCaller, r) })
		p.row("%s | %.2f µs", c.name, took)
		p.atMost("decision: "+c.name, took, 3, " µs")
	}
	return nil
}

// An issuer resolves its organization.
type issuer struct{ key *keystore.Key }

func (i issuer) Resolve(context.Context, did.DID) (*did.Document, error) {
	m := did.VerificationMethod{ID: string(benchOrg) + "#i1", Type: "Multikey", Controller: benchOrg, KeyType: did.Ed25519, PublicKey: i.key.Public()}
	return &did.Document{ID: benchOrg, VerificationMethod: []did.VerificationMethod{m}, AssertionMethod: []string{m.ID}}, nil
}

// credentials measures a credential that is shown, and the principal of a node whose credential was seen.
func credentials(ctx context.Context, p plan) error {
	key, err := keystore.New()
	if err != nil {
		return err
	}
	now := time.Now().UTC().Truncate(time.Second)
	c, err := vc.Issue(vc.Credential{Type: vc.Node, Issuer: benchOrg, Subject: benchNode, Roles: benchCaller.Roles, From: now.Add(-time.Hour),
		Until: now.Add(time.Hour), Status: vc.Status{List: benchLists, Index: 42}}, key, string(benchOrg)+"#i1")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "lmosd-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	t, err := trust.New(trust.Options{Dir: dir, Self: key.DID(), Network: "bench"})
	if err != nil {
		return err
	}
	defer t.Close()
	check := vc.Check{Resolver: issuer{key}, Now: now}
	verified := p.threadTimeOf(func() { _, err = vc.Verify(ctx, c.Raw, check) })
	if err != nil {
		return err
	}
	seen := p.threadTimeOf(func() { t.Principal(benchNode) })
	p.table("credential | processor time")
	p.row("verified | %.0f µs", verified)
	p.row("seen before: the principal of a node | %.2f µs", seen)
	p.atMost("credential, verified", verified, 150, " µs")
	p.atMost("credential, seen before", seen, 1, " µs")
	return nil
}

// audiences measures queries over 10,000 Things, of which one in ten is for partners, without a filter and for callers.
func audiences(ctx context.Context, p plan) error {
	rules := policy.New(policy.Rules{Options: rules.Options{Organization: func(name string) (did.DID, bool) { return benchOrg, name == "acme" }, More: []func(*access.Builder) error{func(b *access.Builder) error {
		return b.AddRule("r", access.Rule{Allow: []string{"acme"}, To: []string{"find", "call"}, On: []string{directorytest.ID(70), "agent-80"}})
	}}}})
	if err := rules.Load(); err != nil {
		return err
	}
	caller := func(change func(*did.Principal)) context.Context {
		one := *benchCaller
		change(&one)
		return did.WithPrincipal(ctx, &one)
	}
	callers := []struct {
		name string
		ctx  context.Context
	}{
		{"no filter", caller(func(p *did.Principal) { p.Via = did.Process })},
		{"member", caller(func(p *did.Principal) { p.Relation = did.Own })},
		{"partner with a rule", caller(func(*did.Principal) {})},
		{"partner", caller(func(p *did.Principal) { p.Org = "" })},
		{"untrusted", caller(func(p *did.Principal) { p.Org, p.Roles, p.Relation = "", nil, did.Untrusted })},
	}
	d, err := directory.New(directory.Options{Max: 4 * nThings, Sees: rules.Finds, Scope: rules.Scope})
	if err != nil {
		return err
	}
	if err := fill(ctx, d); err != nil {
		return err
	}
	find := func(ctx context.Context, q td.Query, _ int) {
		for range d.FindLocal(ctx, q) {
		}
	}
	page := func(ctx context.Context, q td.Query, i int) {
		d.Page(ctx, q, i*7919%(nThings*8/10), 50)
	}
	queries := []struct {
		name string
		ask  func(context.Context, td.Query, int)
		q    func(i int) td.Query
	}{
		{"exact capability", find, func(i int) td.Query { return td.Query{Capability: []string{directorytest.Capability(i % nThings)}} }},
		{"capability prefix", find, func(i int) td.Query { return td.Query{Capability: []string{directorytest.Family(i)}} }},
		{"type, which all have", find, func(int) td.Query { return td.Query{Type: "agent"} }},
		{"two words", find, func(i int) td.Query {
			return td.Query{Text: directorytest.Words()[i%1000] + " " + directorytest.Words()[i*7%5000]}
		}},
		{"a question that nearly all fit", find, func(int) td.Query { return td.Query{Text: "who can check stock levels"} }},
		{"page of 50", page, func(int) td.Query { return td.Query{} }},
	}
	columns := fmt.Sprintf("query over %d agents, one in ten for partners", nThings)
	for _, c := range callers {
		columns += " | " + c.name
	}
	p.table(columns)
	for _, q := range queries {
		const block = 64 // queries, the same for all callers and in all rounds
		first, ratios := make([]float64, 0, p.rounds), make([][]float64, len(callers))
		runtime.LockOSThread()
		for start, round := time.Now(), 0; round < 2*len(callers) || time.Since(start) < time.Duration(p.rounds)*p.length; round++ {
			times := make([]time.Duration, len(callers))
			for i := range callers {
				c := (i + round) % len(callers) // each is first, second, ... as often as the others
				before := threadTime()
				for i := range block {
					q.ask(callers[c].ctx, q.q(i*7919), i)
				}
				times[c] = threadTime() - before
			}
			if round == 0 {
				continue // some descriptions were packed
			}
			first = append(first, us(times[0])/block)
			for c, t := range times {
				ratios[c] = append(ratios[c], float64(t)/float64(times[0]))
			}
		}
		runtime.UnlockOSThread()
		cells := fmt.Sprintf("%s | %.1f µs", q.name, medianOf(first))
		worst := 0.0
		for _, r := range ratios[1:] {
			cells += fmt.Sprintf(" | %.2f", medianOf(r))
			worst = max(worst, medianOf(r))
		}
		p.row("%s", cells)
		p.atMost(q.name+": the dearest caller / no filter", worst, 1.1, "")
	}
	return nil
}

// fill adds agents to a directory.
func fill(ctx context.Context, d *directory.Directory) error {
	verifier := td.NewVerifier(did.Keys())
	signed, err := directorytest.Sign(0, nThings)
	if err != nil {
		return err
	}
	for i, s := range signed {
		desc, err := s.Verify(ctx, verifier, time.Now())
		if err != nil {
			return err
		}
		if i%10 == 0 {
			desc.Visibility, desc.Record.Audience = td.Partners, td.Partners
		}
		if _, err := d.Add(desc); err != nil {
			return err
		}
	}
	return nil
}
