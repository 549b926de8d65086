package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway/sessions"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/internal/sse"
	accessrules "github.com/lmosd/lmosd/policy/access"
)

// Groups are the groups of the node. Errors are those of [interact.Error].
type Groups interface {
	List() []api.Group
	Get(ref string) (*api.Group, error)
	// Log returns the log of a group, an entry per line.
	Log(ref string) ([]byte, error)
	Create(q api.GroupCreate) (*api.Group, error)
	Join(ctx context.Context, q api.GroupJoin) (*api.Group, error)
	Invite(ctx context.Context, ref string, q api.GroupInvite) (*api.GroupInvitation, error)
	Change(ctx context.Context, ref string, q api.GroupChange) (*api.Group, error)
	// Send sends an event of the caller of ctx to the other members.
	Send(ctx context.Context, ref, typ string, data json.RawMessage) (*api.GroupDelivery, error)
	// Watch yields the events from now on. It ends with an error when the membership of the node ends.
	Watch(ctx context.Context, ref string) iter.Seq2[api.GroupEvent, error]
}

const (
	groupKeepAlive = 15 * time.Second
	maxGroupEvent  = api.MaxGroupEvent + 1<<10 // bytes of the body
	logType        = "application/jsonl"
)

// groupRoutes returns the routes of groups, by pattern of the mux. They respond NotFound on a node without Options.Groups.
func (g *Gateway) groupRoutes() map[string]http.Handler {
	return map[string]http.Handler{
		"GET /v1/groups":                 g.groups(read, g.listGroups),
		"POST /v1/groups":                g.groups(admin, g.createGroup),
		"POST /v1/groups/join":           g.groups(admin, g.joinGroup),
		"GET /v1/groups/{group}":         g.groups(read, g.getGroup),
		"GET /v1/groups/{group}/log":     g.groups(read, g.groupLog),
		"POST /v1/groups/{group}/invite": g.groups(admin, g.inviteToGroup),
		"POST /v1/groups/{group}/change": g.groups(admin, g.changeGroup),
		"POST /v1/groups/{group}/events": g.groups(call, g.sendToGroup),
		"GET /v1/groups/{group}/events":  g.groups(call, g.watchGroup),
	}
}

// A groupHandler serves a route of groups.
type groupHandler func(all Groups, w http.ResponseWriter, r *http.Request) error

// groups returns a protected handler. Members speak as the node: callers with an access token need the right to manage it, sessions with fewer rights
// only look, and unproven callers are rejected.
func (g *Gateway) groups(a access, h groupHandler) http.Handler {
	return kept(g, a, g.o.Groups, "this node keeps no groups", func(all Groups, w http.ResponseWriter, r *http.Request) error {
		p := did.PrincipalOf(r.Context())
		n := sessionOf(r)
		if grant := grantOf(r); grant != nil && !grant.IsOperator() && !grant.Allows(accessrules.Manage, nil) || p != nil && p.Relation != did.Local ||
			a > read && n != nil && rightsIn(r, n) < sessions.Admin {
			return interact.Errorf(interact.Forbidden, "use the unix socket, or a token with the scope manage", "groups are for the consumers of this node that have its rights")
		}
		return h(all, w, r)
	})
}

func (g *Gateway) listGroups(all Groups, w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, api.GroupList{APIVersion: api.APIVersion, Kind: "GroupList", Items: all.List()})
}

// writeGroup writes a group.
func writeGroup(w http.ResponseWriter, status int, d *api.Group, err error) error {
	if err != nil {
		return err
	}
	d.APIVersion, d.Kind = api.APIVersion, "Group"
	return writeJSON(w, status, d)
}

func (g *Gateway) getGroup(all Groups, w http.ResponseWriter, r *http.Request) error {
	d, err := all.Get(r.PathValue("group"))
	return writeGroup(w, http.StatusOK, d, err)
}

func (g *Gateway) groupLog(all Groups, w http.ResponseWriter, r *http.Request) error {
	log, err := all.Log(r.PathValue("group"))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", logType)
	_, _ = w.Write(log) // the client is gone
	return nil
}

func (g *Gateway) createGroup(all Groups, w http.ResponseWriter, r *http.Request) error {
	var q api.GroupCreate
	if err := readBody(w, r, &q, `{"name":"claims"}`); err != nil {
		return err
	}
	d, err := all.Create(q)
	return writeGroup(w, http.StatusCreated, d, err)
}

func (g *Gateway) joinGroup(all Groups, w http.ResponseWriter, r *http.Request) error {
	var q api.GroupJoin
	if err := readBody(w, r, &q, `{"invitation":"lmos-invite:…"}`); err != nil {
		return err
	}
	d, err := all.Join(r.Context(), q)
	return writeGroup(w, http.StatusOK, d, err)
}

func (g *Gateway) inviteToGroup(all Groups, w http.ResponseWriter, r *http.Request) error {
	var q api.GroupInvite
	if err := readBody(w, r, &q, `{"uses":1}`); err != nil {
		return err
	}
	i, err := all.Invite(r.Context(), r.PathValue("group"), q)
	if err != nil {
		return err
	}
	i.APIVersion, i.Kind = api.APIVersion, "GroupInvitation"
	return writeJSON(w, http.StatusCreated, i)
}

func (g *Gateway) changeGroup(all Groups, w http.ResponseWriter, r *http.Request) error {
	var q api.GroupChange
	if err := readBody(w, r, &q, `{"kind":"remove","member":"did:key:…"}`); err != nil {
		return err
	}
	d, err := all.Change(r.Context(), r.PathValue("group"), q)
	return writeGroup(w, http.StatusOK, d, err)
}

func (g *Gateway) sendToGroup(all Groups, w http.ResponseWriter, r *http.Request) error {
	var q api.GroupEvent
	if err := readLimited(w, r, maxGroupEvent, &q, `{"type":"note","data":{}}`); err != nil {
		return err
	}
	d, err := all.Send(r.Context(), r.PathValue("group"), q.Type, q.Data)
	if err != nil {
		return err
	}
	d.APIVersion, d.Kind = api.APIVersion, "GroupDelivery"
	return writeJSON(w, http.StatusOK, d)
}

// watchGroup sends the events of a group as server-sent events.
func (g *Gateway) watchGroup(all Groups, w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(g.streamCtx, cancel)()
	ref := r.PathValue("group")
	if _, err := all.Get(ref); err != nil {
		return err
	}
	e := sse.NewWriter(w, g.o.timeouts.write)
	defer e.End()
	var ended error
	sse.Follow(ctx, e, groupKeepAlive, func(ctx context.Context) iter.Seq2[api.GroupEvent, error] {
		return func(yield func(api.GroupEvent, error) bool) {
			for event, err := range all.Watch(ctx, ref) {
				if err != nil {
					ended = err
					return
				}
				if !yield(event, nil) {
					return
				}
			}
		}
	}, func(event api.GroupEvent) error {
		data, err := json.Marshal(event)
		if err != nil {
			return err
		}
		return e.Send("event", event.ID, data)
	})
	switch lost, ok := errors.AsType[*interact.Error](context.Cause(r.Context())); {
	case ok: // the rights of the client have ended
		problem.Send(e, lost)
	case ended != nil && !e.Started():
		return ended
	case ended != nil:
		problem.Send(e, interact.AsError(ended))
	case g.streamCtx.Err() != nil:
		problem.Send(e, errShuttingDown())
	}
	return nil
}
