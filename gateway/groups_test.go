package gateway

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// A fakeGroups has one group, "claims".
type fakeGroups struct{ sent []string }

var errNoGroup = interact.Errorf(interact.NotFound, "see the list of groups", "this node has no group of that name")

func (f *fakeGroups) List() []api.Group {
	return []api.Group{{ID: "Qm1", Name: "claims", State: api.GroupActive}}
}

func (f *fakeGroups) Get(ref string) (*api.Group, error) {
	if ref != "claims" {
		return nil, errNoGroup
	}
	return &api.Group{ID: "Qm1", Name: "claims", State: api.GroupActive, Members: []api.GroupMember{{DID: owner1, Node: owner1, Role: "admin"}}}, nil
}

func (f *fakeGroups) Log(ref string) ([]byte, error) {
	if ref != "claims" {
		return nil, errNoGroup
	}
	return []byte("{}\n"), nil
}

func (f *fakeGroups) Create(q api.GroupCreate) (*api.Group, error) {
	return &api.Group{ID: "Qm2", Name: q.Name, State: api.GroupActive}, nil
}

func (f *fakeGroups) Join(_ context.Context, q api.GroupJoin) (*api.Group, error) {
	if q.Invitation != "lmos-invite:x" {
		return nil, interact.Errorf(interact.InvalidInvite, "request a new one", "it is no invitation")
	}
	return f.Get("claims")
}

func (f *fakeGroups) Invite(_ context.Context, ref string, _ api.GroupInvite) (*api.GroupInvitation, error) {
	if ref != "claims" {
		return nil, errNoGroup
	}
	return &api.GroupInvitation{Invitation: "lmos-invite:y"}, nil
}

func (f *fakeGroups) Change(_ context.Context, ref string, q api.GroupChange) (*api.Group, error) {
	if q.Kind == api.GroupDissolve {
		return nil, interact.Errorf(interact.GroupDissolved, "create another group", "it was dissolved before")
	}
	return f.Get(ref)
}

func (f *fakeGroups) Send(ctx context.Context, ref, typ string, data json.RawMessage) (*api.GroupDelivery, error) {
	f.sent = append(f.sent, did.PrincipalOf(ctx).ID()+" "+typ+" "+string(data))
	return &api.GroupDelivery{ID: "E1", Delivered: 1}, nil
}

// Watch yields two events, and then the end of the membership.
func (f *fakeGroups) Watch(context.Context, string) iter.Seq2[api.GroupEvent, error] {
	return func(yield func(api.GroupEvent, error) bool) {
		for _, id := range []string{"E1", "E2"} {
			if !yield(api.GroupEvent{ID: id, Group: "Qm1", Member: owner2, Node: owner2, Data: json.RawMessage(`1`)}, nil) {
				return
			}
		}
		yield(api.GroupEvent{}, interact.Errorf(interact.NotMember, "ask an admin of the group", "this node is not a member of the group"))
	}
}

func TestGroups(t *testing.T) {
	t.Parallel()
	groups, store := &fakeGroups{}, memory(t)
	r := start(t, Options{Groups: groups, Tokens: store})
	c := dial(t, r.url, token)
	if l, err := c.Groups(t.Context()); err != nil || l.Kind != "GroupList" || len(l.Items) != 1 {
		t.Errorf("list: %+v, %v", l, err)
	}
	if g, err := c.CreateGroup(t.Context(), api.GroupCreate{Name: "tender"}); err != nil || g.Kind != "Group" || g.Name != "tender" {
		t.Errorf("create: %+v, %v", g, err)
	}
	if _, err := c.JoinGroup(t.Context(), api.GroupJoin{Invitation: "x"}); interact.AsError(err).Code != interact.InvalidInvite {
		t.Errorf("join: %v", err)
	}
	if i, err := c.InviteToGroup(t.Context(), "claims", api.GroupInvite{}); err != nil || i.Kind != "GroupInvitation" || i.Invitation != "lmos-invite:y" {
		t.Errorf("invite: %+v, %v", i, err)
	}
	if _, err := c.ChangeGroup(t.Context(), "claims", api.GroupChange{Kind: api.GroupDissolve}); interact.AsError(err).Code != interact.GroupDissolved {
		t.Errorf("dissolve: %v", err)
	}
	if log, err := c.GroupLog(t.Context(), "claims"); err != nil || string(log) != "{}\n" {
		t.Errorf("log: %s, %v", log, err)
	}
	if d, err := c.SendToGroup(t.Context(), "claims", "note", json.RawMessage(`{"a":1}`)); err != nil || d.Kind != "GroupDelivery" || d.Delivered != 1 {
		t.Errorf("send: %+v, %v", d, err)
	}
	if len(groups.sent) != 1 || !strings.HasSuffix(groups.sent[0], ` note {"a":1}`) {
		t.Errorf("sent: %q", groups.sent)
	}
	var ids []string
	var ended error
	for e, err := range c.WatchGroup(t.Context(), "claims") {
		if err != nil {
			ended = err
			break
		}
		ids = append(ids, e.ID)
	}
	if strings.Join(ids, " ") != "E1 E2" || interact.AsError(ended).Code != interact.NotMember {
		t.Errorf("events %q, %v", ids, ended)
	}

	scoped, manager := grant(t, store, "ci", "call", "find"), grant(t, store, "ops", "manage", "call", "find")
	asJSON := func(h map[string]string) map[string]string { return merge(h, "Content-Type", interact.JSON) }
	caller, all := r.signIn(t, "call", nil).both(), r.signIn(t, "admin", nil).both()
	const send = `{"type":"note","data":1}`
	for name, x := range map[string]exchange{
		"a group that does not exist":     {path: "/v1/groups/other", status: 404, code: "LMOS-1404"},
		"events of one":                   {path: "/v1/groups/other/events", status: 404, code: "LMOS-1404"},
		"creating without a token":        {method: http.MethodPost, path: "/v1/groups", header: asJSON(nil), body: `{"name":"x"}`, status: 401, code: "LMOS-1401"},
		"a token for calls lists":         {path: "/v1/groups", header: scoped, status: 403, code: "LMOS-1403"},
		"a token for calls sends":         {method: http.MethodPost, path: "/v1/groups/claims/events", header: asJSON(scoped), body: send, status: 403, code: "LMOS-1403"},
		"a token that manages sends":      {method: http.MethodPost, path: "/v1/groups/claims/events", header: asJSON(manager), body: send, status: 200},
		"a session that calls reads":      {path: "/v1/groups/claims", header: caller, status: 200},
		"a session that calls sends":      {method: http.MethodPost, path: "/v1/groups/claims/events", header: asJSON(caller), body: send, status: 403, code: "LMOS-1403"},
		"a session that calls listens":    {path: "/v1/groups/claims/events", header: caller, status: 403, code: "LMOS-1403"},
		"a page without a session":        {path: "/v1/groups/claims/events", header: map[string]string{"Sec-Fetch-Site": "same-origin"}, status: 401, code: "LMOS-1401"},
		"a page looks":                    {path: "/v1/groups/claims", header: map[string]string{"Sec-Fetch-Site": "same-origin"}, status: 200},
		"a session of all rights sends":   {method: http.MethodPost, path: "/v1/groups/claims/events", header: asJSON(all), body: send, status: 200},
		"a caller through a proxy":        {path: "/v1/groups/claims", header: map[string]string{"X-Forwarded-For": "192.0.2.1"}, status: 403, code: "LMOS-1403"},
		"a change that is no JSON":        {method: http.MethodPost, path: "/v1/groups/claims/change", header: asJSON(asAdmin), body: `{`, status: 400, code: "LMOS-1400"},
		"a change with an unknown member": {method: http.MethodPost, path: "/v1/groups/claims/change", header: asJSON(asAdmin), body: `{"kinds":"x"}`, status: 400, code: "LMOS-1400"},
		"an event that is too large":      {method: http.MethodPost, path: "/v1/groups/claims/events", header: asJSON(asAdmin), body: `{"data":"` + strings.Repeat("x", 40<<10) + `"}`, status: 413, code: "LMOS-1413"},
		"a parameter that does not exist": {path: "/v1/groups?state=active", status: 400, code: "LMOS-2000"},
	} {
		x.name = name
		t.Run(name, func(t *testing.T) { r.check(t, x) })
	}
	t.Run("a node without groups", func(t *testing.T) {
		start(t, Options{}).check(t, exchange{path: "/v1/groups", status: 404, code: "LMOS-1404"})
	})
}
