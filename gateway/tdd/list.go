package tdd

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// maxFields limits the selected members of the TDs of a list.
const maxFields = 32

// A listRequest is a parsed request for a list.
type listRequest struct {
	scope      Scope
	offset     int
	limit      int // 0: all
	collection bool
	enriched   bool
	fields     []string // nil: whole TDs
	forms      string   // "node" or ""
	query      url.Values
}

func readList(r *http.Request) (l listRequest, err error) {
	q, err := Params(r, "limit", "offset", "format", "forms", "scope", "fields", "enriched")
	if err != nil {
		return l, err
	}
	l.query = q
	if l.limit, err = Integer(q, "limit", 1, math.MaxInt32, 0); err != nil {
		return l, err
	}
	if l.offset, err = Integer(q, "offset", 0, math.MaxInt32, 0); err != nil {
		return l, err
	}
	format, err := oneOf(q, "format", "array", "collection")
	if err != nil {
		return l, err
	}
	l.collection = format == "collection"
	if l.forms, err = oneOf(q, "forms", "node"); err != nil {
		return l, err
	}
	scope, err := oneOf(q, "scope", string(Local), string(Mesh), string(Discovered))
	if err != nil {
		return l, err
	}
	l.scope = Scope(scope)
	if l.enriched, err = Flag(q, "enriched", l.forms == ""); err != nil {
		return l, err
	}
	if q.Has("fields") {
		l.fields = strings.Split(q.Get("fields"), ",")
		if len(l.fields) > maxFields || slices.Contains(l.fields, "") {
			return l, interact.Errorf(interact.Usage, "fields=id,title", "fields is %q; expected 1 to %d names", Clip(q.Get("fields")),
				maxFields)
		}
	}
	return l, nil
}

// pageURL returns the URL of the part of the list that begins at offset, with the other parameters
// (tdd-things-list-pagination-header-nextlink-attr).
func (l *listRequest) pageURL(offset int) string {
	address := "/things"
	separator := "?"
	add := func(name, value string) {
		if value != "" {
			address += separator + name + "=" + url.QueryEscape(value)
			separator = "&"
		}
	}
	if l.limit > 0 {
		add("limit", strconv.Itoa(l.limit))
	}
	if l.limit > 0 && offset > 0 || l.query.Has("offset") {
		add("offset", strconv.Itoa(offset))
	}
	for _, name := range []string{"forms", "format", "scope", "fields", "enriched"} {
		add(name, l.query.Get(name))
	}
	return address
}

// list writes the Things ordered by id (tdd-things-list-pagination-order-default), all without a limit (tdd-things-list-only).
func (s *Server) list(w http.ResponseWriter, r *http.Request) error {
	l, err := readList(r)
	if err != nil {
		return err
	}
	if l.forms != "" && s.o.RewriteForms == nil {
		return interact.Errorf(interact.Usage, "leave forms out", "unknown forms %q", l.forms)
	}
	p := s.o.Things.Page(r.Context(), l.scope, l.offset, l.limit)
	next := ""
	if l.limit > 0 && l.offset+len(p.Items) < p.Total {
		next = l.pageURL(l.offset + len(p.Items))
		w.Header().Add("Link", "<"+next+`>; rel="next"`)
	}
	if l.limit > 0 || l.query.Has("offset") {
		w.Header().Add("Link", fmt.Sprintf(`</things>; rel="canonical"; etag=%q`, p.Tag))
	}
	w.Header().Add("Vary", "Accept, Accept-Encoding")
	if acceptedType(r, typeLD, typeJSON, typeLinks) == typeLinks {
		return s.listLinks(w, r, p.Items)
	}
	w.Header().Set("Content-Type", acceptedType(r, typeLD, typeJSON))
	body, done := compressed(w, r)
	defer done()
	if r.Method == http.MethodHead {
		return nil // GET has no Content-Length either: it streams
	}
	open, end := "[", "]\n"
	if l.collection { // tdd-things-list-pagination-collection
		open, end = collection(p.Total, l.pageURL(l.offset), next), "]}\n"
	}
	return s.writeItems(body, r, &l, p.Items, open, end)
}

// collection returns the beginning of a ThingCollection, up to its first member.
func collection(total int, id, next string) string {
	head, _ := json.Marshal(struct { // strings and numbers always encode
		Context string `json:"@context"`
		Type    string `json:"@type"`
		ID      string `json:"@id"`
		Total   int    `json:"total"`
		Next    string `json:"next,omitempty"`
	}{td.ContextDiscovery, "ThingCollection", id, total, next})
	return string(head[:len(head)-1]) + `,"members":[`
}

// writeItems writes TDs one after another. It ignores errors of writing: the client disconnected.
func (s *Server) writeItems(w io.Writer, r *http.Request, l *listRequest, page []Item, open, end string) error {
	now := time.Now()
	buf := []byte(open)
	for i, d := range page {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = s.appendItem(buf, r, l, d, now)
		if len(buf) > 32<<10 {
			if _, err := w.Write(buf); err != nil {
				return nil
			}
			buf = buf[:0]
		}
	}
	_, _ = w.Write(append(buf, end...)) // see above
	return nil
}

// appendItem appends d as l requires.
func (s *Server) appendItem(dst []byte, r *http.Request, l *listRequest, d Item, now time.Time) []byte {
	raw := d.TD
	if l.forms != "" {
		described, err := s.o.RewriteForms(r, d.Describe())
		if err != nil { // verified TDs can be parsed
			s.o.Log.Error("rewriting of forms failed", "thing", d.Record.Thing, "err", err)
		} else {
			raw = described
		}
	}
	at := len(dst)
	if l.enriched {
		dst = s.enrich(dst, raw, s.entryFor(r.Context(), d.Record), now)
	} else {
		dst = append(dst, raw...)
	}
	if l.fields == nil {
		return dst
	}
	members, _ := jcs.Members(dst[at:]) // verified TDs are valid
	members = slices.DeleteFunc(members, func(m jcs.Member) bool { return !slices.Contains(l.fields, m.Name) })
	return append(dst[:at], jcs.Join(members)...)
}

// listLinks writes links to TDs (RFC 6690 §2; WoT Discovery §6.4).
func (s *Server) listLinks(w http.ResponseWriter, r *http.Request, page []Item) error {
	w.Header().Set("Content-Type", typeLinks)
	body, done := compressed(w, r)
	defer done()
	if r.Method == http.MethodHead {
		return nil
	}
	_, _ = body.Write(links(page)) // the client may have disconnected
	return nil
}

// links returns links to Things.
func links(things []Item) (body []byte) {
	for _, d := range things {
		if len(body) > 0 {
			body = append(body, ',')
		}
		body = appendLink(body, ThingPath(refOf(d.Record)), coreThing, d.Record.Title)
	}
	return body
}

// refOf returns the exact reference of a Thing.
func refOf(r *td.Record) string { return (&td.Description{Record: r}).Ref() }

// appendLink appends a link to a TD; ct is the content format of application/td+json.
func appendLink(dst []byte, path, rt, title string) []byte {
	dst = append(dst, "<"+path+`>;rt="`+rt+`";ct=432`...)
	if title != "" {
		// A quoted string in one line (RFC 2616 §2.2).
		dst = append(dst, `;title="`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(interact.Readable(title))+`"`...)
	}
	return dst
}

// core serves /.well-known/core (RFC 6690 §4): a link to the directory (WoT Discovery §8), or with ?rt=wot.thing links to the Things of
// this node, for callers that may read the directory.
func (s *Server) core() http.Handler {
	things := s.guard(Read, s.coreThings)
	own := s.guard(Open, func(w http.ResponseWriter, r *http.Request) error {
		q, err := Params(r, "rt")
		if err != nil {
			return err
		}
		var body []byte
		if rt := q.Get("rt"); rt == "" || rt == "wot.directory" || rt == "wot.*" {
			body = appendLink(nil, "/.well-known/wot", "wot.directory", "")
		}
		WriteBytes(w, http.StatusOK, typeLinks, body)
		return nil
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if q, err := Params(r, "rt"); err == nil && q.Get("rt") == coreThing {
			things.ServeHTTP(w, r)
			return
		}
		own.ServeHTTP(w, r)
	})
}

const coreThing = "wot.thing" // WoT Discovery §6.4

func (s *Server) coreThings(w http.ResponseWriter, r *http.Request) error {
	WriteBytes(w, http.StatusOK, typeLinks, links(s.o.Things.Page(r.Context(), Local, 0, 0).Items))
	return nil
}

// self serves the TD of the directory (WoT Discovery §6.2 and §7.2).
func (s *Server) self(w http.ResponseWriter, r *http.Request) error {
	raw := s.o.Describe()
	sum := sha256.Sum256(raw)
	writeTagged(w, r, `"`+hex.EncodeToString(sum[:])+`"`, acceptedType(r, typeTD, typeJSON), raw)
	return nil
}
