package td

import (
	"slices"
	"strings"
	"unicode"

	"github.com/lmosd/lmosd/did"
)

// Ref is how people and messages name a thing.
//
// Forms: "weather" (a title, its slug, or the last part of an id; must be unique), "weather@z6Mkp…" (the same, with the
// owner's key, or any unique prefix of it), a full id ("urn:…"), a full id and owner ("urn:…@z6Mk…"), a DID.
type Ref struct {
	Name  string // name or id
	Owner string // "", or a prefix of the owner's multibase key, or a full DID
}

// ParseRef splits a reference at its owner: at the last "@" that is followed by a key ("z6Mk…", cut at will, with or
// without a trailing "…") or a DID. An id that carries its owner ("did:…", "urn:lmos:did:…") names the owner too. Any
// text is a reference; whether something has it is for the directory to say.
func ParseRef(s string) Ref {
	s = strings.TrimSpace(s)
	if at := strings.LastIndexByte(s, '@'); at > 0 {
		if owner := strings.TrimSuffix(s[at+1:], "…"); isOwner(owner) {
			return Ref{Name: s[:at], Owner: owner}
		}
	}
	return Ref{Name: s, Owner: string(ownerInID(s))}
}

// isOwner tells whether s is the part of a reference after "@". Every Ed25519 did:key begins with z6Mk, so a mail
// address or a URL with a user in it is not taken for one.
func isOwner(s string) bool {
	return strings.HasPrefix(s, "did:") || strings.HasPrefix(s, "z6Mk") && !strings.ContainsFunc(s, notAlnum)
}

func notAlnum(r rune) bool {
	return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r)
}

// String returns the reference as it is written.
func (r Ref) String() string {
	if r.Owner == "" || r.Owner == string(ownerInID(r.Name)) {
		return r.Name
	}
	return r.Name + "@" + r.Owner
}

// Exact reports whether the name is a full id: it has a scheme, and no two things of one owner share it.
func (r Ref) Exact() bool { return hasScheme(r.Name) }

// Owns reports whether owner is whom the reference names: always, if it names nobody.
func (r Ref) Owns(owner did.DID) bool {
	switch {
	case r.Owner == "" || r.Owner == string(owner):
		return true
	case strings.HasPrefix(r.Owner, "did:"):
		return false
	}
	return strings.HasPrefix(owner.Multibase(), r.Owner)
}

// Match reports whether the reference names d: by id, or regardless of case by title, slug, or the last part of the id.
func (r Ref) Match(d *Description) bool {
	if !r.Owns(d.Record.Owner) {
		return false
	}
	id := d.Record.Thing
	if r.Name == id || r.Exact() {
		return r.Name == id
	}
	slug := Slug(r.Name)
	if slug == "" {
		return strings.EqualFold(r.Name, d.Record.Title)
	}
	return slug == Slug(d.Record.Title) || slug == Slug(lastPart(id))
}

func lastPart(id string) string { return id[strings.LastIndexAny(id, ":/#")+1:] }

// Ref returns the exact reference of d.
func (d *Description) Ref() string { return ExactRef(d.Record.Thing, d.Record.Owner) }

// ExactRef returns the exact reference of a thing: id and owner, or the id alone if the owner is part of it.
func ExactRef(id string, owner did.DID) string {
	if ownerInID(id) == owner {
		return id
	}
	if key := owner.Multibase(); key != "" {
		return id + "@" + key
	}
	return id + "@" + string(owner)
}

// Name returns the short name of the thing: the slug of its title, else of the last part of its id.
func (t *Thing) Name() string {
	if name := Slug(t.Title); name != "" {
		return name
	}
	return Slug(lastPart(t.ID))
}

// Slug returns s in lower case with runs of anything but letters and digits as one hyphen: "Weather Agent" is
// "weather-agent". Letters of any script stay. The slug of a slug is itself.
func Slug(s string) string {
	var b strings.Builder
	gap := false
	for _, r := range strings.ToLower(s) {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r) {
			gap = b.Len() > 0
			continue
		}
		if gap {
			b.WriteByte('-')
		}
		gap = false
		b.WriteRune(r)
	}
	return b.String()
}

const urnLMOS = "urn:lmos:"

// mintID returns the id that a thing without one gets: "urn:lmos:<owner>:<name>", in ASCII.
func mintID(owner did.DID, name string) string {
	if name == "" {
		name = "thing"
	}
	return urnLMOS + string(owner) + ":" + percent(name)
}

// percent writes everything that RFC 3986 §2.3 does not call unreserved as %XX.
func percent(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if c := s[i]; !notAlnum(rune(c)) || strings.IndexByte("-._~", c) >= 0 {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}

// ownerInID returns the DID that an id carries as its owner, or "": the id "did:…" itself without path and fragment,
// and <did> in "urn:lmos:<did>:<name>". The scheme and namespace of a URN know no case (RFC 8141 §3.1).
func ownerInID(id string) did.DID {
	if len(id) >= 4 && strings.EqualFold(id[:4], "did:") {
		end := strings.IndexAny(id, "/?#")
		if end < 0 {
			end = len(id)
		}
		return did.DID(id[:end])
	}
	if len(id) < len(urnLMOS) || !strings.EqualFold(id[:len(urnLMOS)], urnLMOS) {
		return ""
	}
	rest := id[len(urnLMOS):]
	if colon := strings.LastIndexByte(rest, ':'); colon > 0 && len(rest) >= 4 && strings.EqualFold(rest[:4], "did:") {
		return did.DID(rest[:colon])
	}
	return ""
}

// NameKey returns the form of a name in which names are compared. A title without a letter has no slug.
func NameKey(s string) string {
	if slug := Slug(s); slug != "" {
		return slug
	}
	return strings.ToLower(strings.ToUpper(s))
}

// Names returns what people may call the thing of a record, as keys: its title and the last part of its id.
func (r *Record) Names() []string {
	id := r.Thing
	names := []string{NameKey(r.Title), NameKey(id[strings.LastIndexAny(id, ":/#")+1:])}
	slices.Sort(names)
	names = slices.Compact(names)
	if names[0] == "" {
		names = names[1:]
	}
	return names
}

// HasName reports whether a name is one of [Record.Names].
func (r *Record) HasName(name string) bool { return slices.Contains(r.Names(), NameKey(name)) }
