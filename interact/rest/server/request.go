package server

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/interact/rest"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/internal/sse"
	"github.com/lmosd/lmosd/td"
)

const (
	maxWait   = interact.MaxWait // limits the timeout that a consumer requests
	maxMember = 256              // bytes of a text of a message (see interact.Message)
	maxBlock  = 1 << 20          // bytes of a body that is read as a whole, even if it can be a stream
	chunkSize = 64 << 10         // maximum bytes of a chunk of a stream
)

// message returns the message of type t for the request, without its data.
func (v *visit) message(t interact.Type) (*interact.Message, error) {
	m := &interact.Message{Type: t, From: did.PrincipalOf(v.r.Context()), ID: interact.NewID(), Thing: v.desc.Ref(), Name: v.at.name,
		ActionID: v.at.id,
		Accept:   wanted(v.r.Header)}
	v.callID[0] = m.ID
	v.w.Header()["Lmos-Call-Id"] = v.callID[:] // api.CallIDHeader; errors have it, too
	m.TraceParent, m.TraceState = interact.TraceContext(v.r.Header.Get("Traceparent"), strings.Join(v.r.Header.Values("Tracestate"), ","))
	m.Via = cmp.Or(v.r.Header.Get("Lmos-Via"), v.param("via"))
	// The draft of the header writes a string of Structured Fields, with quotes; most clients leave them out.
	m.Key = strings.Trim(v.r.Header.Get("Idempotency-Key"), `"`)
	if hops := v.r.Header.Get(rest.HopsHeader); hops != "" {
		n, err := strconv.ParseUint(hops, 10, 8)
		if err != nil || n > interact.MaxHops { // not a small number
			return nil, interact.Errorf(interact.Loop, "see which nodes relay to each other", "the message passed %s nodes",
				interact.Excerpt(hops, 20))
		}
		m.Hops = uint8(n)
	}
	if text := v.r.Header.Get(capabilityHeader); text != "" {
		var err error
		if m.With, err = Capability(m.From, text); err != nil {
			return nil, err
		}
	}
	if t.Long() {
		m.After = cmp.Or(v.r.Header.Get("Last-Event-Id"), v.param("lastEventId"), v.param("after"))
	}
	if v.r.Header.Get("Lmos-Timing") != "" || v.has("timing") {
		m.Timing = &interact.Timing{}
	}
	for _, member := range [...]struct{ name, text string }{
		{"Lmos-Via", m.Via}, {"Idempotency-Key", m.Key}, {"Last-Event-ID", m.After},
	} {
		if len(member.text) > maxMember {
			return nil, interact.Errorf(interact.Invalid, "shorten it", "expected at most %d bytes in %s, got %d", maxMember, member.name,
				len(member.text))
		}
	}
	return m, nil
}

// has reports whether the query has the parameter name of this server, and the address of the affordance has no variable of that name.
func (v *visit) has(name string) bool {
	if v.r.URL.RawQuery == "" || !v.r.URL.Query().Has(name) {
		return false
	}
	a := v.affordance()
	return a == nil || a.URIVariables[name] == nil
}

func (v *visit) param(name string) string {
	if !v.has(name) {
		return ""
	}
	return v.r.URL.Query().Get(name)
}

// affordance returns the affordance of the path, or nil.
func (v *visit) affordance() *td.Affordance {
	t := interact.SubscribeEvent
	switch v.at.kind {
	case "properties":
		t = interact.ReadProperty
	case "actions":
		t = interact.InvokeAction
	}
	return interact.Affordance(v.desc.Thing, &interact.Message{Type: t, Name: v.at.name})
}

// withTimeout sets the deadline of m by the timeout that the consumer requests.
func (v *visit) withTimeout(m *interact.Message) (context.Context, context.CancelFunc, error) {
	wait, err := v.timeout(m)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(v.r.Context(), wait)
	m.Deadline, _ = ctx.Deadline()
	return ctx, cancel, nil
}

// timeout returns the timeout of the consumer. The default of a stream is the maximum, because it lasts as long as its source.
func (v *visit) timeout(m *interact.Message) (time.Duration, error) {
	if text := v.param("timeout"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 || d > maxWait {
			return 0, interact.Errorf(interact.Invalid, "for example ?timeout=5s",
				"expected as timeout a duration of at most %v", maxWait)
		}
		return d, nil
	}
	if text := preferences(v.r.Header)["wait"]; text != "" {
		if seconds, err := strconv.ParseUint(text, 10, 32); err == nil && seconds > 0 { // RFC 7240 §2: a preference that cannot be met is ignored
			return min(time.Duration(seconds)*time.Second, maxWait), nil
		}
	}
	if m.Chunks != nil {
		return maxWait, nil
	}
	return form.DefaultTimeout, nil
}

// preferences reads the header Prefer: values by name in lower case (RFC 7240 §2). The first of a name counts.
func preferences(h http.Header) map[string]string {
	if h["Prefer"] == nil {
		return nil
	}
	all := map[string]string{}
	for p := range strings.SplitSeq(strings.Join(h.Values("Prefer"), ","), ",") {
		p, _, _ = strings.Cut(p, ";")
		name, value, _ := strings.Cut(strings.TrimSpace(p), "=")
		name = strings.ToLower(strings.TrimSpace(name))
		if _, twice := all[name]; name != "" && !twice {
			all[name] = strings.Trim(value, `" `)
		}
	}
	return all
}

// prefers reports whether the consumer has the preference name.
func prefers(h http.Header, name string) bool {
	_, ok := preferences(h)[name]
	return ok
}

// A mediaRange is one entry of an Accept header (RFC 9110 §12.5.1).
type mediaRange struct {
	media   string
	quality float64
}

// accepted reads the Accept headers; at most 32 entries.
func accepted(h http.Header) (all []mediaRange) {
	if h["Accept"] == nil {
		return nil
	}
	for entry := range strings.SplitSeq(strings.Join(h.Values("Accept"), ","), ",") {
		media, params, err := mime.ParseMediaType(entry)
		if err != nil || len(all) == 32 {
			continue
		}
		q := 1.0
		if text, ok := params["q"]; ok {
			if q, err = strconv.ParseFloat(text, 64); err != nil {
				q = 0
			}
		}
		all = append(all, mediaRange{media, q})
	}
	return all
}

// wanted returns the media type that the consumer prefers; empty if it accepts any type, or only types that an agent does not have:
// events and lines are encodings of this server. The server never sends 406 (Not Acceptable): the consumer may be able to use other types.
func wanted(h http.Header) string {
	var best mediaRange
	for _, r := range accepted(h) {
		if r.quality > best.quality && r.media != sse.MediaType && r.media != linesType {
			best = r
		}
	}
	if strings.Contains(best.media, "*") || len(best.media) > maxMember {
		return ""
	}
	return best.media
}

// wantsEvents reports whether the Accept header of the consumer contains server-sent events.
func wantsEvents(r *http.Request) bool { return accepts(r, sse.MediaType) }

// accepts reports whether the Accept header contains media.
func accepts(r *http.Request, media string) bool {
	return slices.ContainsFunc(accepted(r.Header), func(m mediaRange) bool { return m.media == media && m.quality > 0 })
}

// load reads the body, and the variables in the query, into m.
func (v *visit) load(m *interact.Message) error {
	if v.r.Method == http.MethodPut || v.r.Method == http.MethodPost {
		if err := v.loadBody(m); err != nil {
			return err
		}
	}
	if a := v.affordance(); a != nil && len(a.URIVariables) > 0 && m.Chunks == nil {
		return v.loadVariables(m, a)
	}
	return nil
}

func (v *visit) loadBody(m *interact.Message) (err error) {
	if v.r.ContentLength != 0 {
		if m.ContentType, err = inputType(v.r, v.affordance()); err != nil && v.r.ContentLength > 0 {
			return err
		}
	}
	if err == nil && v.isStream(m) {
		v.loadStream(m)
		return nil
	}
	wrong := err // a body without a length may be empty
	if m.Data, err = problem.ReadBody(v.w, v.r, rest.MaxBody); err != nil {
		return err
	}
	if len(m.Data) == 0 {
		m.ContentType = ""
		return nil
	}
	return wrong
}

// loadVariables adds the variables in the query to the input and converts it to JSON.
func (v *visit) loadVariables(m *interact.Message, a *td.Affordance) (err error) {
	query := v.r.URL.Query()
	given := func(name string) bool { return query.Has(name) }
	if !slices.ContainsFunc(slices.Sorted(maps.Keys(a.URIVariables)), given) {
		return nil
	}
	if m.Data, m.ContentType, err = interact.Transcode(m.Data, m.Media(), interact.JSON); err != nil {
		return err
	}
	if len(m.Data) == 0 || td.IsJSON(m.ContentType) {
		m.Data, m.ContentType = form.AddVariables(m.Data, query, a.URIVariables, interact.InputSchema(v.desc.Thing, m)), ""
	}
	return nil
}

// inputType returns the media type of a body: JSON, CBOR, or a type of a form of the affordance. A form of the mesh has no address and no
// media type: the agent checks the type. The check also rejects requests of other web sites that a browser sends without a preflight
// (text/plain, HTML forms; Fetch §2.2.2): HTML forms are not accepted there, and text is accepted only without Origin, which a web page
// sends in each POST, also to its own site (Fetch §3.2).
func inputType(r *http.Request, a *td.Affordance) (string, error) {
	contentType := r.Header.Get("Content-Type")
	if err := checkCoding(r); err != nil {
		return "", err
	}
	switch {
	case contentType == "":
	case td.IsJSON(contentType):
		return interact.JSON, nil
	case interact.IsCBOR(contentType):
		return interact.CBOR, nil
	case a != nil && slices.ContainsFunc(a.Forms, func(f td.Form) bool {
		return acceptsBody(&f, interact.MediaType(contentType), r.Header.Get("Origin") != "")
	}):
		return interact.MediaType(contentType), nil
	}
	return "", interact.Errorf(interact.UnsupportedType, "Content-Type: "+interact.JSON,
		"a body of type %q is not supported here", interact.Excerpt(contentType, 100))
}

// simpleTypes are the media types that a browser sends without a preflight (Fetch §2.2.2).
var simpleTypes = []string{"text/plain", "multipart/form-data", "application/x-www-form-urlencoded"}

// acceptsBody reports whether a form accepts a body of a media type; page means that a web page sends it.
func acceptsBody(f *td.Form, media string, page bool) bool {
	if interact.MediaType(f.ContentType) == media {
		return true
	}
	return strings.HasPrefix(f.Href, td.MeshHref) && media != "" && len(media) <= maxMember &&
		(!slices.Contains(simpleTypes, media) || media == "text/plain" && !page)
}

// isStream reports whether the body of the request is sent to the agent in chunks, as it arrives.
func (v *visit) isStream(m *interact.Message) bool {
	return m.Type == interact.InvokeAction && (v.r.ContentLength < 0 || v.r.ContentLength > maxBlock) &&
		!td.IsJSON(m.ContentType) && !interact.IsCBOR(m.ContentType)
}

// loadStream makes the body a sequence of chunks that is read on demand.
func (v *visit) loadStream(m *interact.Message) {
	control := http.NewResponseController(v.w)
	// Else net/http reads the rest of an HTTP/1 body before the first byte of the response. Not all writers support it.
	_ = control.EnableFullDuplex()
	m.Chunks = chunksOf(v.r.Body, func(end bool) {
		if v.r.Context().Err() != nil {
			return // the response is complete, and the connection may have its next request
		}
		deadline := time.Time{} // after the end, net/http reads until the consumer disconnects
		if !end {
			deadline = time.Now().Add(v.o.pace.read)
		}
		_ = control.SetReadDeadline(deadline) // not all connections have deadlines
	})
}

// chunksOf reads body in parts. before is called before each part, and at the end.
func chunksOf(body io.Reader, before func(end bool)) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		buf := make([]byte, chunkSize)
		for {
			before(false)
			n, err := body.Read(buf)
			if n > 0 && !yield(bytes.Clone(buf[:n]), nil) {
				return
			}
			switch {
			case err == io.EOF:
				before(true)
				return
			case err != nil:
				yield(nil, problem.IncompleteBody(err))
				return
			}
		}
	}
}

// check checks m against the description. Its errors are those of explained.
func (v *visit) check(m *interact.Message) error {
	c := *m
	if m.Type == interact.InvokeAction && len(m.Data) == 0 && m.Chunks == nil && interact.InputSchema(v.desc.Thing, m).Type() == "object" {
		c.Data, c.ContentType = []byte("{}"), interact.JSON // so that the error lists the missing members
	}
	err := interact.Check(v.desc.Thing, &c)
	if err == nil {
		err = form.CheckVariables(v.desc.Thing, m)
	}
	return v.explained(m, err)
}

// explained completes an error for HTTP consumers: with the header Allow, with similar names, or with the position of an error in the
// input.
func (v *visit) explained(m *interact.Message, err error) error {
	if err == nil {
		return nil
	}
	e := *interact.AsError(err)
	var syntax *jcs.SyntaxError
	switch {
	case e.Code == interact.NotAllowed:
		v.w.Header().Set("Allow", v.allowed(m))
	case e.Code == interact.NoAffordance && !e.Remote:
		if names := similar(m.Name, v.names()); len(names) > 0 {
			e.Hint = "did you mean " + strings.Join(names, " or ") + "?"
		}
	case e.Code == interact.Invalid && !e.Remote:
		if len(e.Issues) == 0 && errors.As(e.Err, &syntax) {
			e.Issues = []td.Issue{{Reason: syntax.Error()}}
		}
		if len(e.Issues) > 0 {
			e.Title = form.InvalidTitle(m, e.Issues)
		}
	}
	return &e
}

// allowed lists the methods of the property of m; empty for other affordances.
func (v *visit) allowed(m *interact.Message) string {
	p := v.desc.Properties[m.Name]
	if v.at.kind != "properties" || p == nil || v.at.poll {
		return ""
	}
	var all []string
	if !p.WriteOnly {
		all = append(all, "GET", "HEAD")
	}
	if p.Observable {
		all = append(all, "POST")
	}
	if !p.ReadOnly {
		all = append(all, "PUT")
	}
	return strings.Join(all, ", ")
}

// names returns the names of the affordances of the kind in the path.
func (v *visit) names() []string {
	switch v.at.kind {
	case "properties":
		return slices.Sorted(maps.Keys(v.desc.Properties))
	case "actions":
		return slices.Sorted(maps.Keys(v.desc.Actions))
	}
	return slices.Sorted(maps.Keys(v.desc.Events))
}
