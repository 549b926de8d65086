package tdd

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/interact/rest/server"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/td"
)

// tdTypes are the accepted media types of a TD (tdd-things-create-known-contenttype; tdd-things-representation-alternate-input).
var tdTypes = []string{typeTD, typeJSON, typeLD}

// retrieve writes one TD as signed, or enriched (tdd-things-retrieve).
func (s *Server) retrieve(w http.ResponseWriter, r *http.Request) error {
	q, err := Params(r, "enriched")
	if err != nil {
		return err
	}
	enriched, err := Flag(q, "enriched", false)
	if err != nil {
		return err
	}
	d, err := s.get(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	media := acceptedType(r, typeTD, typeJSON)
	if !enriched {
		writeTagged(w, r, etag(d.Record), media, d.Raw)
		return nil
	}
	w.Header().Set("ETag", etag(d.Record))
	WriteBytes(w, http.StatusOK, media, s.enrich(nil, d.Raw, s.entryFor(r.Context(), d.Record), time.Now()))
	return nil
}

// get is Things.Get, but withdrawn Things are 404.
func (s *Server) get(ctx context.Context, ref string) (*td.Description, error) {
	d, err := s.o.Things.Get(ctx, ref)
	if e, ok := errors.AsType[*interact.Error](err); ok && e.Code == interact.Withdrawn {
		return nil, &interact.Error{Code: interact.NotFound, Title: e.Title, Hint: e.Hint, Err: e.Err}
	}
	return d, err
}

// create publishes a TD without an id (tdd-things-create-anonymous-td). It adds a random id: two equal TDs are two Things
// (tdd-anonymous-td-local-uuid).
func (s *Server) create(w http.ResponseWriter, r *http.Request) error {
	raw, given, reg, err := s.readTD(w, r)
	if err != nil {
		return err
	}
	if given != "" {
		return interact.Errorf(interact.Invalid, "PUT "+ThingPath(given), "the TD has the id %q; POST is for TDs without an id", Clip(given))
	}
	open := bytes.IndexByte(raw, '{') + 1 // a parsed object with members
	raw = slices.Concat(raw[:open], []byte(`"id":"urn:uuid:`+interact.NewID()+`",`), raw[open:])
	id, _, err := s.o.Publisher.Enter(r.Context(), raw, reg)
	if err != nil {
		return err
	}
	w.Header().Set("Location", ThingPath(id))
	w.WriteHeader(http.StatusCreated)
	return nil
}

// put creates or replaces the Thing of the path (tdd-things-create-known-td, tdd-things-update).
func (s *Server) put(w http.ResponseWriter, r *http.Request) error {
	raw, given, reg, err := s.readTD(w, r)
	if err != nil {
		return err
	}
	id := r.PathValue("id")
	if given != id {
		return interact.Errorf(interact.Invalid, "PUT it to the path of its id, or POST /things without one",
			"the path has the id %q, the TD %q", Clip(id), Clip(given))
	}
	defer s.locks.Lock(id)()
	known, err := s.ownRecord(r.Context(), id)
	if err != nil {
		return err
	}
	if err := precondition(r, id, known); err != nil {
		return err
	}
	_, created, err := s.o.Publisher.Enter(r.Context(), raw, reg)
	if err != nil {
		return err
	}
	if created {
		w.Header().Set("Location", ThingPath(id))
		w.WriteHeader(http.StatusCreated)
		return nil
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// ownRecord returns the record of this node's Thing with an id, or nil if no owner has one. The error is Forbidden if only others have one.
func (s *Server) ownRecord(ctx context.Context, id string) (*td.Record, error) {
	var other *td.Record
	for _, item := range s.o.Things.Lookup(ctx, id) {
		if _, ok := s.o.Publisher.Registered(item.Record); ok {
			return item.Record, nil
		}
		other = item.Record
	}
	if other != nil {
		return nil, otherOwner(other)
	}
	return nil, ctx.Err() // the lookup of a caller who has left finds nothing
}

// otherOwner returns the error for a change of another owner's Thing.
func otherOwner(r *td.Record) error {
	return interact.Errorf(interact.Forbidden, "change it at the node of its owner, "+string(r.Owner), "%s has another owner", Clip(r.Thing))
}

// lockOwn returns this node's Thing of a reference and locks it. The caller must call release unless there is an error.
func (s *Server) lockOwn(ctx context.Context, ref string) (d *td.Description, r publication.Registration, release func(), err error) {
	if d, err = s.get(ctx, ref); err != nil {
		return nil, r, nil, err
	}
	if _, ok := s.o.Publisher.Registered(d.Record); !ok {
		return nil, r, nil, otherOwner(d.Record)
	}
	release = s.locks.Lock(d.ID)
	d, err = s.get(ctx, d.ID) // its state after concurrent changes
	if err == nil {
		var mine bool
		if r, mine = s.o.Publisher.Registered(d.Record); !mine {
			err = otherOwner(d.Record)
		}
	}
	if err != nil {
		release()
		return nil, r, nil, err
	}
	return d, r, release, nil
}

// patch merges a part of a TD into that of a Thing (tdd-things-update-partial). A patch without members of the TD changes only the
// registration; a ttl begins again.
func (s *Server) patch(w http.ResponseWriter, r *http.Request) error {
	if err := server.CheckContentType(r, typePatch); err != nil {
		return err
	}
	body, err := problem.ReadBody(w, r, int64(s.o.MaxTD))
	if err != nil {
		return err
	}
	patch, err := readPatch(body)
	if err != nil {
		return err
	}
	d, reg, release, err := s.lockOwn(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	defer release()
	if err := precondition(r, d.ID, d.Record); err != nil {
		return err
	}
	if v, there := patch["registration"]; there {
		if reg, err = readRegistration(v, reg, time.Now()); err != nil {
			return err
		}
		delete(patch, "registration")
	}
	if len(patch) == 0 {
		err = s.o.Publisher.Register(r.Context(), d.ID, reg)
	} else {
		err = s.patchTD(r.Context(), d, reg, patch)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// readPatch reads a merge patch, which is an object.
func readPatch(body []byte) (map[string]any, error) {
	v, err := jcs.Decode(body, len(body))
	patch, ok := v.(map[string]any)
	switch {
	case err != nil:
		return nil, &interact.Error{Code: interact.NotJSON, Hint: "send an object (RFC 7396)",
			Issues: []td.Issue{{Reason: err.Error()}}}
	case !ok:
		return nil, &interact.Error{Code: interact.BadTD, Hint: "send an object (RFC 7396)",
			Issues: []td.Issue{{Reason: "expected an object"}}}
	}
	return patch, nil
}

// patchTD publishes the patched TD of d. Its proof is dropped unless the patch contains one.
func (s *Server) patchTD(ctx context.Context, d *td.Description, reg publication.Registration, patch map[string]any) error {
	if _, signed := patch["proof"]; !signed {
		patch["proof"] = nil
	}
	raw, err := mergeTD(d.Raw, patch)
	if err != nil {
		return err
	}
	id, err := td.Validate(raw) // the result must be a TD (tdd-things-update-partial-partialtd)
	if err != nil {
		return err
	}
	if id != d.ID {
		return interact.Errorf(interact.Invalid, "PUT it under its new id, and DELETE the old one", "a patch may not change the id")
	}
	_, _, err = s.o.Publisher.Enter(ctx, raw, reg)
	return err
}

// remove withdraws a Thing (tdd-things-delete).
func (s *Server) remove(w http.ResponseWriter, r *http.Request) error {
	d, _, release, err := s.lockOwn(r.Context(), r.PathValue("id"))
	if err != nil {
		if len(r.Header.Values("If-Match")) > 0 && interact.AsError(err).Code == interact.NotFound {
			return &preconditionError{id: r.PathValue("id")}
		}
		return err
	}
	defer release()
	if err := precondition(r, r.PathValue("id"), d.Record); err != nil {
		return err
	}
	if err := s.o.Publisher.Withdraw(r.Context(), d.ID); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// readTD reads and validates a TD (tdd-validation-jsonschema), and removes its registration. The id is empty if the TD has none.
func (s *Server) readTD(w http.ResponseWriter, r *http.Request) (raw []byte, id string, reg publication.Registration, err error) {
	if err := server.CheckContentType(r, tdTypes...); err != nil {
		return nil, "", reg, err
	}
	if raw, err = problem.ReadBody(w, r, int64(s.o.MaxTD)); err != nil {
		return nil, "", reg, err
	}
	raw, reg, err = takeRegistration(bytes.TrimPrefix(raw, []byte("\ufeff")))
	if err != nil {
		return nil, "", reg, err
	}
	id, err = td.Validate(raw)
	return raw, id, reg, err
}

// ThingPath returns the path of a Thing.
func ThingPath(id string) string { return "/things/" + url.PathEscape(id) }

func etag(r *td.Record) string { return `"` + hex.EncodeToString(r.Hash[:]) + `"` }

// A preconditionError reports that a Thing is not in the state that the client named. Only HTTP uses it, so it has no error code.
type preconditionError struct {
	id  string
	tag string // of the current state; "" without a Thing
}

func (e *preconditionError) Error() string {
	if e.tag == "" {
		return "unknown thing: " + Clip(e.id)
	}
	return Clip(e.id) + " has the state " + e.tag
}

// write writes 412 (RFC 9110 §15.5.13).
func (e *preconditionError) write(w http.ResponseWriter) {
	if e.tag != "" {
		w.Header().Set("ETag", e.tag)
	}
	hint := "GET " + ThingPath(e.id) + ", and repeat the change with its ETag in If-Match"
	if e.tag == "" {
		hint = "repeat the change without If-Match"
	}
	body, _ := json.Marshal(problem.Document{ // strings and numbers always encode
		Type: "about:blank", Title: "Precondition Failed", Status: http.StatusPreconditionFailed, Detail: e.Error(), Hint: hint})
	WriteBytes(w, http.StatusPreconditionFailed, problem.MediaType, body)
}

// precondition rejects a change to a Thing that is not in the state that the client named (RFC 9110 §13.1); now is nil without a Thing. The
// caller holds the lock of the Thing.
func precondition(r *http.Request, id string, now *td.Record) error {
	match, none := r.Header.Values("If-Match"), r.Header.Values("If-None-Match")
	tag := ""
	if now != nil {
		tag = etag(now)
	}
	if len(match) > 0 && (tag == "" || !hasTag(match, tag)) || tag != "" && hasTag(none, tag) {
		return &preconditionError{id: id, tag: tag}
	}
	return nil
}

// hasTag reports whether a conditional header contains tag. A weak tag means the same TD.
func hasTag(values []string, tag string) bool {
	for v := range strings.SplitSeq(strings.Join(values, ","), ",") {
		if v = strings.TrimSpace(v); v == "*" || strings.TrimPrefix(v, "W/") == tag {
			return true
		}
	}
	return false
}

// writeTagged writes body, or 304 if the client has it (RFC 9110 §13.1.2).
func writeTagged(w http.ResponseWriter, r *http.Request, tag, contentType string, body []byte) {
	w.Header().Set("ETag", tag)
	if hasTag(r.Header.Values("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	WriteBytes(w, http.StatusOK, contentType, body)
}

// WriteBytes writes a response with a body.
func WriteBytes(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have disconnected
}

// acceptedType returns the first of types that Accept contains, or types[0]. It does not negotiate further
// (tdd-http-representation-alternate-output is a MAY).
func acceptedType(r *http.Request, types ...string) string {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	for _, t := range types {
		if strings.Contains(accept, t) {
			return t
		}
	}
	return types[0]
}
