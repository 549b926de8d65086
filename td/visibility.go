package td

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td/schema"
)

// A Visibility states who may receive a description (lmosd:visibility). It is the audience of its record. The zero value is Public.
type Visibility uint8

// The visibilities, from the largest audience to the smallest.
const (
	Public       Visibility = iota
	Partners                // members of the organization of the host, and callers that a rule lets find it
	Organization            // members of the organization of the host
	Named                   // callers, such as a group, that a rule on the Thing names
	Private                 // consumers of the host
)

var visibilities = []string{"public", "partners", "organization", "named", "private"}

// audiences are the numbers of the visibilities in records.
var audiences = [...]uint64{Public: 0, Partners: 1, Organization: 2, Private: 3, Named: 4}

// audience returns the number of a visibility in records.
func (v Visibility) audience() uint64 { return audiences[v] }

// visibilityOf returns the visibility with a number in records, which is at most [maxAudience].
func visibilityOf(audience uint64) Visibility {
	return Visibility(slices.Index(audiences[:], audience))
}

const maxAudience = uint64(len(audiences)) - 1

// String returns "public", "partners", "organization", "named" or "private".
func (v Visibility) String() string { return visibilities[min(v, Private)] }

// MarshalText implements [encoding.TextMarshaler].
func (v Visibility) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]. The error lists the values.
func (v *Visibility) UnmarshalText(text []byte) error {
	at := slices.Index(visibilities, string(text))
	if at < 0 {
		return fmt.Errorf("unknown visibility %s; expected %s", schema.Show(string(text)), visibilityNames())
	}
	*v = Visibility(at)
	return nil
}

// A Scope states which Things a caller may find, so that a list need not ask for each Thing.
type Scope struct {
	// All has the visibilities of which the caller finds all Things, and Each those of which each Thing must be asked for. Things with
	// another visibility are not found.
	All, Each [Private + 1]bool
	// Allow are queries for Things that must be asked for although the caller does not find all Things with their visibility, and Deny for
	// those that must be although it does: the Things that rules name.
	Allow, Deny []Query
}

// Except returns the queries for the Things with a visibility that must be asked for.
func (s *Scope) Except(v Visibility) []Query {
	if s.All[v] {
		return s.Deny
	}
	return s.Allow
}

// Decides reports whether the caller finds all Things with a visibility, or none, without exceptions.
func (s *Scope) Decides(v Visibility) bool { return !s.Each[v] && len(s.Except(v)) == 0 }

func visibilityNames() string {
	return strings.Join(visibilities[:Private], ", ") + " or " + visibilities[Private]
}

// The members that restrict a description. lmosd:unlisted is read as the visibility private.
const (
	visibilityTerm = "lmosd:visibility"
	unlistedTerm   = "lmosd:unlisted"
)

// readVisibility returns the visibility of a TD that was checked.
func readVisibility(doc map[string]any) (v Visibility) {
	if flag(doc[unlistedTerm]) {
		return Private
	}
	_ = v.UnmarshalText([]byte(text(doc[visibilityTerm]))) // checkVisibility reports the error; without the member it is public
	return v
}

// Restrict returns a completed TD with lmosd:visibility, unless it states who may receive it. The error is that of [Complete]; a TD that its
// author signed without a visibility is invalid.
func Restrict(t *Thing, v Visibility, owner did.DID) (*Thing, error) {
	_, stated := t.doc[visibilityTerm]
	if v == Public || stated || flag(t.doc[unlistedTerm]) {
		return t, nil
	}
	if _, signed := t.doc["proof"]; signed {
		return nil, invalid("/proof", fmt.Sprintf("the TD is signed without %q: %q; add that and sign it again, or remove the proof", visibilityTerm, v))
	}
	return Complete(addMember(t.Raw, visibilityTerm, bytesOf(v.String())), owner)
}

func (c *checker) checkVisibility() {
	value, there := c.doc[visibilityTerm]
	if !there {
		return
	}
	name, isText := value.(string)
	switch {
	case !isText:
		c.violation(ownTerm, schema.Pointer(visibilityTerm), "%s", schema.WrongType("", value, "string").Reason)
	case new(Visibility).UnmarshalText([]byte(name)) != nil:
		c.violation(ownTerm, schema.Pointer(visibilityTerm), "expected %s, got %s", visibilityNames(), schema.Show(name))
	}
}

// ownTerm is the rule of members that lmosd defines.
const ownTerm = "a term of lmosd"
