package td

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"unicode"

	"github.com/lmosd/lmosd/did"
)

// A Ref is a reference to a Thing, in messages and from users.
//
// Forms: "weather" (a title, its slug, or the last part of an id; must be unique), "weather@z6Mkp…" (with the owner's key or a unique
// prefix of it), a full id ("urn:…"), a full id and owner ("urn:…@z6Mk…"), a DID. A name may follow the organization of its owner:
// "globex/weather" is the Thing "weather" of a verified member of the organization that this node calls globex.
type Ref struct {
	Name         string // name or id
	Owner        string // "", or a prefix of the owner's multibase key, or a full DID
	Organization string // "", or what this node calls the organization of the owner
}

// ParseRef splits a reference into name and owner, at the last "@" before a key ("z6Mk…", or a prefix of it, with or without a trailing
// "…") or a DID. An id that contains its owner ("did:…", "urn:lmos:did:…") sets the owner, too. Every text is a valid reference.
func ParseRef(s string) Ref {
	s = strings.TrimSpace(s)
	if at := strings.LastIndexByte(s, '@'); at > 0 {
		if owner := strings.TrimSuffix(s[at+1:], "…"); isOwner(owner) {
			return Ref{Name: s[:at], Owner: owner}.qualified()
		}
	}
	return Ref{Name: s, Owner: string(ownerInID(s))}.qualified()
}

// qualified returns r with the organization that its name begins with. Ids have a scheme and no organization.
func (r Ref) qualified() Ref {
	if organization, name, ok := strings.Cut(r.Name, "/"); ok && organization != "" && name != "" && !r.Exact() {
		r.Organization, r.Name = organization, name
	}
	return r
}

// isOwner reports whether s is a key or a DID. Every Ed25519 did:key begins with z6Mk, so a mail address or a URL with user information
// does not match.
func isOwner(s string) bool {
	return strings.HasPrefix(s, "did:") || strings.HasPrefix(s, "z6Mk") && !strings.ContainsFunc(s, notAlnum)
}

func notAlnum(r rune) bool {
	return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r)
}

// String returns the text form of the reference.
func (r Ref) String() string {
	name := r.Name
	if r.Organization != "" {
		name = r.Organization + "/" + name
	}
	if r.Owner == "" || r.Owner == string(ownerInID(name)) {
		return name
	}
	return name + "@" + r.Owner
}

// Exact reports whether the name is a full id, which has a scheme and is unique among the Things of one owner.
func (r Ref) Exact() bool { return hasScheme(r.Name) }

// Owns reports whether owner matches the owner of the reference. A reference without an owner matches all.
func (r Ref) Owns(owner did.DID) bool {
	switch {
	case r.Owner == "" || r.Owner == string(owner):
		return true
	case strings.HasPrefix(r.Owner, "did:"):
		return false
	}
	return strings.HasPrefix(owner.Multibase(), r.Owner)
}

// Match reports whether the reference matches d: by id, or case-insensitively by title, slug, or the last part of the id. A reference with an
// organization matches nothing: whether the owner is a member is not in a description.
func (r Ref) Match(d *Description) bool {
	if r.Organization != "" || !r.Owns(d.Record.Owner) {
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

// ExactRef returns the exact reference of a Thing: id and owner, or the id alone if it contains the owner.
func ExactRef(id string, owner did.DID) string {
	if ownerInID(id) == owner {
		return id
	}
	if key := owner.Multibase(); key != "" {
		return id + "@" + key
	}
	return id + "@" + string(owner)
}

// Name returns the short name of the Thing: the slug of its title, else of the last part of its id.
func (t *Thing) Name() string {
	if name := Slug(t.Title); name != "" {
		return name
	}
	return Slug(lastPart(t.ID))
}

// Slug returns s in lower case, with a hyphen for each run of other characters than letters and digits: "weather-agent" for "Weather
// Agent". Letters of all scripts stay. The slug of a slug is the slug itself.
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

// mintID returns an id for a Thing without one: "urn:lmos:<owner>:<name>", in ASCII. A name that makes it longer than MaxID is cut, and its
// hash follows: another long name has another id.
func mintID(owner did.DID, name string) string {
	name = percent(cmp.Or(name, "thing"))
	prefix := urnLMOS + string(owner) + ":"
	if left := MaxID - len(prefix); len(name) > left {
		hash, cut := sha256.Sum256([]byte(name)), name[:max(left-17, 0)]
		if i := strings.LastIndexByte(cut, '%'); i >= 0 && i > len(cut)-3 {
			cut = cut[:i] // an incomplete %XX
		}
		name = cut + "-" + hex.EncodeToString(hash[:8])
	}
	return prefix + name
}

// percent encodes all bytes but the unreserved characters of RFC 3986 §2.3 as %XX.
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

// ownerInID returns the DID of the owner in an id, or "": of "did:…" without path and fragment, and of <did> in
// "urn:lmos:<did>:<name>". The scheme and namespace of a URN are case-insensitive (RFC 8141 §3.1).
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

// NameKey returns the form of a name for comparison: its slug, or the folded name if it has no letters or digits.
func NameKey(s string) string {
	if slug := Slug(s); slug != "" {
		return slug
	}
	return strings.ToLower(strings.ToUpper(s))
}

// Names returns the keys of the names of a record's Thing: its title and the last part of its id.
func (r *Record) Names() []string {
	names := []string{NameKey(r.Title), NameKey(lastPart(r.Thing))}
	slices.Sort(names)
	names = slices.Compact(names)
	if names[0] == "" {
		names = names[1:]
	}
	return names
}

// HasName reports whether the key of a name is one of [Record.Names].
func (r *Record) HasName(name string) bool { return slices.Contains(r.Names(), NameKey(name)) }
