package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/rest/serve"
	"github.com/lmosd/lmosd/td"
)

// tdTypes are the media types that a TD is accepted as (WoT Discovery §7.3.2.1).
var tdTypes = []string{tdJSON, "application/json", "application/ld+json"}

// thingMethods are the methods of /things/{id} (WoT Discovery §7.3.2.1, the Things API).
func (g *Gateway) thingMethods() map[string]http.Handler {
	return map[string]http.Handler{
		http.MethodGet:    g.guarded(read, g.getThing),
		http.MethodPut:    g.guarded(admin, g.putThing),
		http.MethodDelete: g.guarded(admin, g.deleteThing),
	}
}

// newThings makes the server of what is below /things/{id}.
func (g *Gateway) newThings() *serve.Server {
	o := serve.Options{Mesh: g.o.Node.Mesh(), Find: g.o.Node.Get, Log: g.log, Base: g.base, Count: g.metrics.event,
		Bearer: g.tcp != nil && !g.guard.loopback, CallbackDial: g.o.CallbackDial, PrivateCallbacks: g.o.PrivateCallbacks}
	if g.o.WS != nil {
		o.Socket = socketRoute
	}
	return serve.New(o)
}

// base is the address of the API for the caller of r. Who came by the unix socket is told the one that everybody can use.
func (g *Gateway) base(r *http.Request) string {
	switch url := g.URL(); {
	case g.o.PublicURL != "":
		return strings.TrimSuffix(g.o.PublicURL, "/")
	case trusted(r) && url != "":
		return url
	}
	return "http://" + r.Host
}

// interactions serves the affordances of things, and their TDs with forms of this node, to callers who may do what a needs.
func (g *Gateway) interactions(a access) http.Handler {
	return g.guarded(a, func(w http.ResponseWriter, r *http.Request) error {
		g.things.ServeHTTP(w, r)
		return nil
	})
}

func (g *Gateway) getThing(w http.ResponseWriter, r *http.Request) error {
	d, err := g.o.Node.Get(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	writeTagged(w, r, etag(d), accepted(r, tdJSON, interact.JSON), d.Raw)
	return nil
}

// accepted returns the first of types, unless r asks for another of them alone. It is no full negotiation: whoever asks
// for what is not there gets the first.
func accepted(r *http.Request, types ...string) string {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	for _, t := range types {
		if strings.Contains(accept, t) {
			return t
		}
	}
	return types[0]
}

func etag(d *td.Description) string { return `"` + hex.EncodeToString(d.Record.Hash[:]) + `"` }

// writeTagged writes body, or only that the client has it already (RFC 9110 §13.1.2).
func writeTagged(w http.ResponseWriter, r *http.Request, tag, contentType string, body []byte) {
	w.Header().Set("ETag", tag)
	if lists(r.Header.Values("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	writeBytes(w, http.StatusOK, contentType, body)
}

// lists reports whether the values of a conditional header name tag. A weak tag names the same TD.
func lists(values []string, tag string) bool {
	for v := range strings.SplitSeq(strings.Join(values, ","), ",") {
		if v = strings.TrimSpace(v); v == "*" || strings.TrimPrefix(v, "W/") == tag {
			return true
		}
	}
	return false
}

// postThing creates a thing whose id the node chooses.
func (g *Gateway) postThing(w http.ResponseWriter, r *http.Request) error {
	raw, t, err := g.readTD(w, r)
	if err != nil {
		return err
	}
	if t.ID != "" {
		return interact.Errorf(interact.Invalid, "PUT "+thingPath(t.ID),
			"the TD has the id %q; POST is for TDs without", clip(t.ID))
	}
	p, err := g.publish(r.Context(), raw)
	if err != nil {
		return err
	}
	w.Header().Set("Location", thingPath(p.ID))
	w.WriteHeader(http.StatusCreated)
	return nil
}

// putThing creates or replaces the thing of the path.
func (g *Gateway) putThing(w http.ResponseWriter, r *http.Request) error {
	raw, t, err := g.readTD(w, r)
	if err != nil {
		return err
	}
	id := r.PathValue("id")
	if t.ID != id {
		return interact.Errorf(interact.Invalid, "PUT it to the path of its id, or POST /things without one",
			"the path names %q, the TD %q", clip(id), clip(t.ID))
	}
	if err := g.precondition(r, id); err != nil {
		return err
	}
	p, err := g.publish(r.Context(), raw)
	if err != nil {
		return err
	}
	if p.Created {
		w.Header().Set("Location", thingPath(p.ID))
		w.WriteHeader(http.StatusCreated)
		return nil
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (g *Gateway) deleteThing(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if err := g.precondition(r, id); err != nil {
		return err
	}
	if _, err := g.o.Node.Unpublish(r.Context(), id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func thingPath(id string) string { return "/things/" + url.PathEscape(id) }

// readTD reads and validates a TD.
func (g *Gateway) readTD(w http.ResponseWriter, r *http.Request) ([]byte, *td.Thing, error) {
	if err := contentType(r, tdTypes...); err != nil {
		return nil, nil, err
	}
	raw, err := readBody(w, r, g.o.MaxTD)
	if err != nil {
		return nil, nil, err
	}
	t, err := td.Parse(raw)
	return raw, t, err
}

func (g *Gateway) publish(ctx context.Context, raw []byte) (*Publication, error) {
	p, err := g.o.Node.Publish(ctx, raw)
	g.metrics.published(p, err)
	if err != nil {
		return nil, err
	}
	p.APIVersion, p.Kind = APIVersion, "Publication"
	return p, nil
}

// precondition refuses a change to a thing that is not in the state that the client knows (RFC 9110 §13.1). It is looked
// at before the change, not together with it.
func (g *Gateway) precondition(r *http.Request, id string) error {
	match, none := r.Header.Values("If-Match"), r.Header.Values("If-None-Match")
	if len(match) == 0 && len(none) == 0 {
		return nil
	}
	tag := ""
	d, err := g.o.Node.Get(r.Context(), id)
	var e *interact.Error
	switch {
	case err == nil:
		tag = etag(d)
	case !errors.As(err, &e) || e.Code != interact.NotFound && e.Code != interact.Withdrawn:
		return err
	}
	if len(match) > 0 && (tag == "" || !lists(match, tag)) || tag != "" && lists(none, tag) {
		return &preconditionError{id: id, tag: tag}
	}
	return nil
}

// listThings writes the TDs of the node's own index, ordered by id; all of them if no limit is given (WoT Discovery
// §7.3.2.1.5).
func (g *Gateway) listThings(w http.ResponseWriter, r *http.Request) error {
	q, err := params(r, "limit", "offset", "format", "forms")
	if err != nil {
		return err
	}
	limit, err := whole(q, "limit", 1, 1<<31-1, 0)
	if err != nil {
		return err
	}
	offset, err := whole(q, "offset", 0, 1<<31-1, 0)
	if err != nil {
		return err
	}
	if f := q.Get("format"); f != "" && f != "array" {
		return interact.Errorf(interact.Usage, "leave format out", "the format %q is not known", clip(f))
	}
	raw, err := g.rawWith(q.Get("forms"), r)
	if err != nil {
		return err
	}
	all, tag := g.indexed()
	page := all[min(offset, len(all)):]
	if limit != 0 && limit < len(page) {
		page = page[:limit]
		more := ""
		if q.Get("forms") != "" {
			more = "&forms=" + q.Get("forms")
		}
		w.Header().Add("Link", fmt.Sprintf(`</things?limit=%d&offset=%d%s>; rel="next"`, limit, offset+limit, more))
	}
	if q.Has("limit") || q.Has("offset") {
		w.Header().Add("Link", fmt.Sprintf(`</things>; rel="canonical"; etag=%q`, tag))
	}
	w.Header().Set("Content-Type", accepted(r, "application/ld+json", interact.JSON))
	writeArray(w, r, page, raw)
	return nil
}

// rawWith returns what gives the TD of a description: as its owner signed it, or with the forms of this node.
func (g *Gateway) rawWith(forms string, r *http.Request) (func(*td.Description) []byte, error) {
	switch forms {
	case "":
		return func(d *td.Description) []byte { return d.Raw }, nil
	case "node":
		return func(d *td.Description) []byte {
			raw, err := g.things.Describe(r, d)
			if err != nil { // no TD that was verified is one that cannot be read
				g.log.Error("TD cannot be written anew", "thing", d.Ref(), "err", err)
				return d.Raw
			}
			return raw
		}, nil
	}
	return nil, interact.Errorf(interact.Usage, "forms=node, or leave it out for the TDs as they were signed",
		"the forms %q are not known", clip(forms))
}

// indexed returns what the node's index holds, in the order of ids and owners, and a tag of that state.
func (g *Gateway) indexed() ([]*td.Description, string) {
	all := slices.SortedFunc(g.o.Node.Known(), func(a, b *td.Description) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Record.Owner, b.Record.Owner))
	})
	h := sha256.New()
	for _, d := range all {
		digest(h, d.ID, string(d.Record.Owner), string(d.Record.Hash[:]))
	}
	return all, hex.EncodeToString(h.Sum(nil)[:16])
}

// digest writes parts so that no two lists of them give the same bytes.
func digest(h hash.Hash, parts ...string) {
	for _, p := range parts {
		h.Write(strconv.AppendInt(nil, int64(len(p)), 10)) // a hash never fails
		h.Write([]byte{':'})
		h.Write([]byte(p))
	}
}

// writeArray writes TDs one after another, without a copy of all in memory. HEAD gets no length: it would cost as much.
func writeArray(w http.ResponseWriter, r *http.Request, ds []*td.Description, raw func(*td.Description) []byte) {
	if r.Method == http.MethodHead {
		w.WriteHeader(http.StatusOK)
		return
	}
	separator := "["
	for _, d := range ds {
		if _, err := w.Write([]byte(separator)); err != nil {
			return // the client went away
		}
		if _, err := w.Write(raw(d)); err != nil {
			return // likewise
		}
		separator = ","
	}
	if len(ds) == 0 {
		_, _ = w.Write([]byte("[]\n")) // likewise
		return
	}
	_, _ = w.Write([]byte("]\n")) // likewise
}

// wellKnown serves the node's own TD (WoT Discovery §6.4).
func (g *Gateway) wellKnown(w http.ResponseWriter, r *http.Request) error {
	raw := g.o.Node.Description()
	if len(raw) == 0 {
		return interact.Errorf(interact.NotReady, "try again in a moment", "the node has not described itself yet")
	}
	sum := sha256.Sum256(raw)
	writeTagged(w, r, `"`+hex.EncodeToString(sum[:])+`"`, accepted(r, tdJSON, interact.JSON), raw)
	return nil
}
