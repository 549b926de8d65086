package interact

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// MaxWait is how long a consumer may let an interaction with an end take.
const MaxWait = 10 * time.Minute

// Trace gives a message that begins here what it needs to be followed: an id, a W3C trace context and a deadline, timeout
// from now. What a message has already, it keeps; a deadline beyond [MaxWait] becomes that.
func Trace(timeout time.Duration) Wrap {
	return func(t Thing) Thing {
		return Func(func(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
			now := time.Now()
			patient := m.Deadline.Sub(now) > MaxWait && !m.Type.Long()
			if m.ID != "" && m.TraceParent != "" && !m.Deadline.IsZero() && !patient {
				return t.Do(ctx, m)
			}
			c := *m
			if c.ID == "" {
				c.ID = NewID()
			}
			if c.TraceParent == "" {
				c.TraceParent = newTrace()
			}
			if c.Deadline.IsZero() && !c.Type.Long() {
				c.Deadline = now.Add(timeout)
			}
			if patient {
				c.Deadline = now.Add(MaxWait)
			}
			return t.Do(ctx, &c)
		})
	}
}

// Long reports whether an interaction of type t goes on until somebody ends it, so that no deadline is given to it.
func (t Type) Long() bool {
	switch t {
	case ObserveProperty, SubscribeEvent, SubscribeAllEvents:
		return true
	}
	return false
}

// NewID returns a new message id, a UUID of version 4 (LMOS: messageID).
func NewID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	var s [36]byte
	hex.Encode(s[:], b[:4])
	s[8], s[13], s[18], s[23] = '-', '-', '-', '-'
	hex.Encode(s[9:], b[4:6])
	hex.Encode(s[14:], b[6:8])
	hex.Encode(s[19:], b[8:10])
	hex.Encode(s[24:], b[10:])
	return string(s[:])
}

// newTrace returns a traceparent of a new trace that nobody records yet (W3C Trace Context §3.2).
func newTrace() string {
	var b [24]byte
	rand.Read(b[:])
	var s [55]byte
	copy(s[:], "00-")
	hex.Encode(s[3:], b[:16])
	s[35] = '-'
	hex.Encode(s[36:], b[16:])
	copy(s[52:], "-00")
	return string(s[:])
}

// Named asks for ref instead of the name that the consumer used: what is unique here need not be elsewhere.
func Named(ref string) Wrap {
	return func(t Thing) Thing {
		return Func(func(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
			if m.Thing == ref {
				return t.Do(ctx, m)
			}
			c := *m
			c.Thing = ref
			return t.Do(ctx, &c)
		})
	}
}

// Checked lets through only what fits the description d: a known affordance, an operation that it offers, input within its
// schema (TD 1.1 §5.3.1: consumers must not send data outside the schema). Nothing is sent otherwise.
func Checked(d *td.Thing) Wrap {
	return func(t Thing) Thing {
		return Func(func(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
			if err := Check(d, m); err != nil {
				return Fail(err)
			}
			return t.Do(ctx, m)
		})
	}
}

// Check reports what in m does not fit the description d. The error is an [*Error] of code [NoAffordance], [NotAllowed] or
// [Invalid].
func Check(d *td.Thing, m *Message) error {
	switch m.Type {
	case InvokeAction:
		a := d.Actions[m.Name]
		if a == nil {
			return noAffordance(d, "action", m.Name, slices.Collect(maps.Keys(d.Actions)))
		}
		return checkData(d, &a.Affordance, a.Input, m)
	case ReadProperty, ObserveProperty, WriteProperty:
		p := d.Properties[m.Name]
		switch {
		case p == nil:
			return noAffordance(d, "property", m.Name, slices.Collect(maps.Keys(d.Properties)))
		case m.Type == WriteProperty && p.ReadOnly:
			return Errorf(NotAllowed, "read it: lmosd read "+Quote(d.Name())+" "+Quote(m.Name), "property %s of %s is read-only", m.Name, d.Name())
		case m.Type != WriteProperty && p.WriteOnly:
			return Errorf(NotAllowed, "write it: lmosd write "+Quote(d.Name())+" "+Quote(m.Name)+" VALUE", "property %s of %s is write-only", m.Name, d.Name())
		case m.Type == WriteProperty:
			return checkData(d, &p.Affordance, p.Schema, m)
		}
	}
	return nil
}

// checkData checks JSON data against a schema. Data of other media types has no schema. With variables in the address, or a
// secret in the body, the binding at the agent takes the input apart or adds to it, and checks the parts.
func checkData(d *td.Thing, a *td.Affordance, s *td.Schema, m *Message) error {
	if s == nil || len(a.URIVariables) > 0 || hidesMember(d, a) || !td.IsJSON(m.ContentType) {
		return nil
	}
	if len(m.Data) == 0 {
		return checkAbsent(s, m)
	}
	v, err := jcs.Decode(m.Data, len(m.Data))
	if err != nil {
		return &Error{Code: Invalid, Title: "the input is not JSON", Hint: "text needs quotes: '\"text\"'", Err: err}
	}
	if issues := s.Check(v); len(issues) > 0 {
		return &Error{Code: Invalid, Title: "the input does not fit the schema of " + m.Name,
			Hint: "see what it takes: lmosd show " + Quote(m.Thing), Issues: issues}
	}
	return nil
}

// checkAbsent says whether no data will do. An action may be asked without input if that can be anything, or an object whose
// members are all optional.
func checkAbsent(s *td.Schema, m *Message) error {
	if m.Type == InvokeAction && (s.Type() == "" || s.Type() == "object" && len(s.Check(map[string]any{})) == 0) {
		return nil
	}
	return &Error{Code: Invalid, Title: "the input is missing", Hint: "see what it takes: lmosd show " + Quote(m.Thing),
		Issues: []td.Issue{{Reason: "a value is needed here"}}}
}

// hidesMember reports whether a security scheme puts a member into the body that the consumer does not know (TD 1.1 §5.3.3).
func hidesMember(d *td.Thing, a *td.Affordance) bool {
	for i := range a.Forms {
		for _, name := range a.Forms[i].Security {
			if s := d.SecurityDefs[name]; s != nil && s.In == "body" {
				return true
			}
		}
	}
	return false
}

func noAffordance(d *td.Thing, kind, name string, have []string) error {
	slices.Sort(have)
	hint := fmt.Sprintf("%s has no %s", d.Name(), plural(kind))
	if len(have) > 0 {
		hint = fmt.Sprintf("%s has the %s %s", d.Name(), plural(kind), strings.Join(have[:min(len(have), 8)], ", "))
	}
	return Errorf(NoAffordance, hint, "%s has no %s %q", d.Name(), kind, name)
}

func plural(kind string) string {
	if before, ok := strings.CutSuffix(kind, "y"); ok {
		return before + "ies"
	}
	return kind + "s"
}
