package gateway

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/audit"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
)

// Limits of requests for the audit log.
const (
	auditLimit    = 100 // lines without the parameter limit
	maxAuditLimit = 1000
)

// operatorRoutes returns the routes about the operation of the node, by pattern of the mux. Those of the loggers are in refRoutes.
func (g *Gateway) operatorRoutes() map[string]http.Handler {
	return map[string]http.Handler{
		"GET /v1/config":         g.protect(admin, g.getConfig),
		"POST /v1/config/reload": g.protect(admin, g.whole(g.reloadConfig)),
		"GET /v1/logs":           g.protect(admin, g.getLogs),
		"POST /v1/doctor":        g.protect(admin, g.doctor),
		"GET /v1/bridges":        g.protect(admin, g.listBridges),
		"GET /v1/discovered":     g.protect(admin, g.listDiscovered),
		"GET /v1/audit":          g.protect(admin, g.getAudit),
		"GET /v1/trust":          g.trust(admin, g.trustOverview),
	}
}

// getConfig answers with the configuration, which caches do not store: addresses and names in it may be confidential.
func (g *Gateway) getConfig(w http.ResponseWriter, r *http.Request) error {
	if _, err := tdd.Params(r); err != nil {
		return err
	}
	if g.o.Config == nil {
		return interact.Errorf(interact.NoAffordance, "", "this node was started without a configuration").Then(interact.StepStatus)
	}
	w.Header().Set("Cache-Control", "no-store")
	return writeJSON(w, http.StatusOK, api.Config{APIVersion: api.APIVersion, Kind: "Config", Items: g.o.Config()})
}

// bridgeUse counts the requests of one bridge.
type bridgeUse struct {
	requests, errors atomic.Uint64
	last             atomic.Int64 // nanoseconds since 1970; 0: none
}

// count counts a request with the status of its response.
func (u *bridgeUse) count(status int, now time.Time) {
	u.requests.Add(1)
	if status >= http.StatusBadRequest {
		u.errors.Add(1)
	}
	u.last.Store(now.UnixNano())
}

// statusOf returns the status that was written to w; 0 if nothing was, or it is not known.
func statusOf(w http.ResponseWriter) int {
	for {
		if rec, ok := w.(*recorder); ok {
			return rec.status
		}
		inner, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return 0
		}
		w = inner.Unwrap()
	}
}

// A checker is a [Bridge] that can check itself.
type checker interface {
	// Check returns what keeps the bridge from serving, or nil. It asks no other host and ends with ctx.
	Check(ctx context.Context) error
}

// bridges returns the bridges with their use and their checks.
func (g *Gateway) bridges(ctx context.Context) []api.BridgeInfo {
	all := make([]api.BridgeInfo, 0, len(g.o.Bridges))
	for i, b := range g.o.Bridges {
		use := g.bridgeUses[i]
		one := api.BridgeInfo{Name: bridgeName(b), Paths: b.Paths(), Requests: use.requests.Load(), Errors: use.errors.Load(), Status: api.CheckPass}
		if last := use.last.Load(); last != 0 {
			one.Last = time.Unix(0, last).UTC()
		}
		if c, ok := b.(checker); ok {
			if err := c.Check(ctx); err != nil {
				one.Status, one.Text = api.CheckFail, err.Error()
			}
		}
		all = append(all, one)
	}
	return all
}

// bridgeName returns the protocol of a bridge: its name, or the first part of its first path that is not well-known.
func bridgeName(b Bridge) string {
	if named, ok := b.(interface{ Name() string }); ok {
		return named.Name()
	}
	for _, path := range b.Paths() {
		if first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/"); first != "" && first != ".well-known" {
			return first
		}
	}
	return "unknown"
}

func (g *Gateway) listBridges(w http.ResponseWriter, r *http.Request) error {
	if _, err := tdd.Params(r); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, api.BridgeList{APIVersion: api.APIVersion, Kind: "BridgeList", Items: g.bridges(r.Context())})
}

// A discoverer is a [Directory] with Things of introductions (explore.View).
type discoverer interface {
	// Introduced returns the current introductions; never nil.
	Introduced() []api.Discovery
}

func (g *Gateway) listDiscovered(w http.ResponseWriter, r *http.Request) error {
	if _, err := tdd.Params(r); err != nil {
		return err
	}
	list := api.DiscoveryList{APIVersion: api.APIVersion, Kind: "DiscoveryList", Items: []api.Discovery{}}
	if d, ok := g.o.Directory.(discoverer); ok {
		list.Items = d.Introduced()
	}
	return writeJSON(w, http.StatusOK, list)
}

// trustOverview answers with what is known of organizations and groups. It asks no other node.
func (g *Gateway) trustOverview(t Trust, w http.ResponseWriter, _ *http.Request) error {
	all := api.TrustOverview{APIVersion: api.APIVersion, Kind: "Trust", Partners: list(t.Partners()), Issuers: list(t.ForeignIssuers()),
		Credentials: list(t.ForeignCredentials()), Groups: []api.Group{}, Invitations: []api.Invitation{}, Waiting: []api.TrustWaiting{}}
	org, err := t.Organization()
	switch {
	case err == nil:
		org.APIVersion, org.Kind = api.APIVersion, "Organization"
		all.Organization = org
	case interact.AsError(err).Code != interact.NotFound:
		return err
	}
	if org != nil && org.Issuer {
		for _, i := range t.Invitations() {
			i.Text = "" // a secret
			all.Invitations = append(all.Invitations, i)
		}
		requests, err := t.JoinRequests()
		if err != nil {
			return err
		}
		for _, q := range requests {
			all.Waiting = append(all.Waiting, api.TrustWaiting{Kind: api.WaitingJoinRequest, Name: q.Name, DID: q.Node, SCID: q.SCID, Words: q.Words, Expires: q.Expires})
		}
	}
	for _, p := range all.Partners {
		if p.State == api.PartnerUnconfirmed || p.State == api.PartnerSuspended {
			all.Waiting = append(all.Waiting, api.TrustWaiting{Kind: api.WaitingPartner, Name: p.Name, DID: p.DID, SCID: p.SCID, Words: p.Words,
				State: p.State, Expires: p.Until, Next: interact.Next(interact.StepConfirm, p.Name)})
		}
	}
	if g.o.Groups != nil {
		all.Groups = list(g.o.Groups.List())
	}
	for _, one := range all.Groups {
		if one.State == api.GroupInvited {
			all.Waiting = append(all.Waiting, api.TrustWaiting{Kind: api.WaitingGroup, Name: cmp.Or(one.Name, one.Title), DID: one.Inviter, SCID: one.ID})
		}
	}
	return writeJSON(w, http.StatusOK, all)
}

// list returns all, and an empty list for nil.
func list[T any](all []T) []T { return append(make([]T, 0, len(all)), all...) }

func (g *Gateway) getAudit(w http.ResponseWriter, r *http.Request) error {
	v, err := tdd.Params(r, "since", "who", "thing", "code", "decision", "limit")
	if err != nil {
		return err
	}
	if g.o.AuditDir == "" {
		return interact.Errorf(interact.NoAffordance, "", "this node keeps no audit log").Then(interact.StepStatus)
	}
	f := audit.Filter{Who: v.Get("who"), Thing: v.Get("thing"), Verdict: v.Get("decision")}
	if f.Verdict != "" && f.Verdict != "allow" && f.Verdict != "deny" {
		return interact.Errorf(interact.Usage, "decision=allow or decision=deny", "unknown decision %q", tdd.Clip(f.Verdict))
	}
	if code := v.Get("code"); code != "" {
		f.Code = "LMOS-" + strings.TrimPrefix(strings.ToUpper(code), "LMOS-")
		if _, ok := interact.ParseCode(f.Code); !ok {
			return interact.Errorf(interact.Usage, "for example code=1403", "no error has the code %q", tdd.Clip(code))
		}
	}
	if f.Since, err = sinceOf(v.Get("since"), time.Now()); err != nil {
		return err
	}
	limit, err := tdd.Integer(v, "limit", 1, maxAuditLimit, auditLimit)
	if err != nil {
		return err
	}
	reader := audit.NewReader(g.o.AuditDir)
	lines, err := reader.Select(f, limit)
	if err != nil {
		return err
	}
	report, err := g.verifyAudit(r.Context())
	if err != nil && report == nil {
		return err
	}
	all := api.AuditList{APIVersion: api.APIVersion, Kind: "AuditList", Items: make([]api.AuditLine, 0, len(lines)), Verified: err == nil, Unreadable: reader.Unreadable}
	for _, l := range lines {
		all.Items = append(all.Items, auditLine(&l))
	}
	for _, c := range report.Chains[:min(len(report.Chains), 1)] {
		all.Head = strconv.FormatUint(c.Head.N, 10) + ":" + c.Head.Hash
	}
	for _, p := range report.Problems[:min(len(report.Problems), 8)] {
		all.Problems = append(all.Problems, p.String())
	}
	w.Header().Set("Cache-Control", "no-store")
	return writeJSON(w, http.StatusOK, all)
}

// sinceOf reads the time of the oldest line: RFC 3339, or the age as a duration.
func sinceOf(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	age, err := time.ParseDuration(text)
	if err != nil || age <= 0 {
		return time.Time{}, interact.Errorf(interact.Usage, "since=24h, or since=2026-11-20T10:00:00Z", "since is %q; expected an age or a time", tdd.Clip(text))
	}
	return now.Add(-age), nil
}

func auditLine(l *audit.Line) api.AuditLine {
	return api.AuditLine{ID: l.ID(), Seq: l.N, At: l.Time, Event: l.Event, Detail: cmp.Or(l.Detail, l.Broken), Who: l.Who, Organization: l.Org, Roles: l.Roles,
		Via: l.Via, Action: l.Op, Thing: l.Thing, Name: l.Name, Decision: l.Verdict, Rule: l.Rule, Code: l.Code, TraceID: l.Trace, Times: l.Times,
		Hash: l.Hash(), Prev: l.Prev}
}

// verifyAudit checks the whole audit log, once at a time. Without a report, the error is that of ctx, or of a log that cannot be read. The check runs on when ctx ends, and Close waits for it.
func (g *Gateway) verifyAudit(ctx context.Context) (*audit.Report, error) {
	self := g.o.Status.Status(ctx).DID
	select {
	case g.auditCheck <- struct{}{}:
	case <-g.lifeCtx.Done():
		return nil, errShuttingDown()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	type result struct {
		report *audit.Report
		err    error
	}
	done := make(chan result, 1)
	g.checks.Go(func() {
		defer func() { <-g.auditCheck }()
		report, err := audit.Verify(g.o.AuditDir, audit.Check{Keys: []did.DID{self}})
		if err != nil && interact.AsError(err).Code != interact.AuditBroken {
			report = nil
		}
		done <- result{report, err}
	})
	select {
	case r := <-done:
		return r.report, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
