// Package partners keeps the trust store of a node: the partners of its organization, the nodes that its operator distrusts, and what else the
// node must not forget about organizations, in the file trust.json.
//
// Each issuer of an organization may change the partners. It signs them as a [List], and [Book.Merge] merges the lists of all issuers: a
// partner that one of them added is not lost because another signed its list later.
package partners

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/atomicfile"
	"github.com/lmosd/lmosd/internal/lazyregexp"
)

// A Partner is an organization whose members have rights here. A Partner in a [Book] is immutable.
type Partner struct {
	Name  string   `json:"name"` // the petname: one organization has it forever
	DID   did.DID  `json:"did"`
	Roles []string `json:"roles,omitempty"` // those of its roles that count; empty: all
	// Since is the start of the partnership, and Until its end; zero: none.
	Since time.Time `json:"since"`
	Until time.Time `json:"until,omitzero"`
	// Changed is the time of the last change by an operator.
	Changed time.Time `json:"changed,omitzero"`
	// Confirmed is false until the operator has compared the check words, unless the invitation named this organization.
	Confirmed bool     `json:"confirmed"`
	Addrs     []string `json:"addrs,omitempty"` // of issuer nodes, with /p2p
	// Removed is the time of the end by the operator; zero: it is in force. Its name stays taken.
	Removed time.Time `json:"removed,omitzero"`
	// Words are the check words of both organizations.
	Words []string `json:"words,omitempty"`
	// Chosen is a version of its log, the versionId, that the operator chose when there were two histories. Logs without it are rejected.
	Chosen string `json:"chosen,omitempty"`
	// Forked is true at a node that knows two histories of the log, until the operator chooses one. Lists do not have it.
	Forked bool `json:"forked,omitempty"`
	// Other is the newest version of the second history. Lists do not have it.
	Other string `json:"other,omitempty"`
}

// SCID returns the identifier of the organization.
func (p *Partner) SCID() string { return webvh.SCID(p.DID) }

// IsRemoved reports whether the operator has ended the partnership.
func (p *Partner) IsRemoved() bool { return !p.Removed.IsZero() }

// HasEnded reports whether the partnership was agreed until an earlier time.
func (p *Partner) HasEnded(now time.Time) bool { return !p.Until.IsZero() && now.After(p.Until) }

// A Book is the trust store of a node.
type Book struct {
	Version    int        `json:"version"`
	Partners   []*Partner `json:"partners,omitempty"`
	Distrusted []did.DID  `json:"distrusted,omitempty"`
	// Foreign are the foreign issuers, whose credentials give roles.
	Foreign []*Issuer `json:"foreign_issuers,omitempty"`
	// Issuers are the addresses of issuer nodes of the own organization, with /p2p.
	Issuers []string `json:"issuers,omitempty"`
	// IssuerNodes has the nodes of the issuing keys of the own organization, by their DID URLs, as far as they are known.
	IssuerNodes map[string]did.DID `json:"issuer_nodes,omitempty"`
	// Offers are what open invitations promise, by their ids.
	Offers map[string]Offer `json:"offers,omitempty"`
	// Shared is the version of the newest list of partners of the own organization, SharedHead its hash, and SharedBy the DID URL of the issuing
	// key that signed it.
	Shared     uint64 `json:"shared,omitempty"`
	SharedHead string `json:"shared_head,omitempty"`
	SharedBy   string `json:"shared_by,omitempty"`
}

// An Offer is what an invitation of this node promises besides its own content.
type Offer struct {
	Until   time.Time `json:"until,omitzero"` // the end of the partnership
	Issuer  bool      `json:"issuer,omitempty"`
	Expires time.Time `json:"expires"` // of the invitation
}

const bookVersion = 1

// Limits of a Book.
const (
	MaxPartners   = 256 // with former ones
	MaxDistrusted = 4096
	maxBook       = 4 << 20 // bytes
)

// New returns an empty book.
func New() *Book { return &Book{Version: bookVersion} }

// Read reads the trust store; a missing file is an empty one.
func Read(path string) (*Book, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return New(), nil
	}
	if err != nil {
		return nil, err
	}
	return parse(text)
}

func parse(text []byte) (*Book, error) {
	b := &Book{}
	if len(text) > maxBook {
		return nil, fmt.Errorf("larger than %d bytes", maxBook)
	}
	if err := json.Unmarshal(text, b); err != nil {
		return nil, err
	}
	if b.Version != bookVersion {
		return nil, fmt.Errorf("expected version %d, got %d", bookVersion, b.Version)
	}
	for i, p := range b.Partners {
		if !p.valid() {
			return nil, fmt.Errorf("partner %d is not valid", i+1)
		}
	}
	for n, i := range b.Foreign {
		if !i.valid() {
			return nil, fmt.Errorf("foreign issuer %d is not valid", n+1)
		}
	}
	return b, nil
}

func (p *Partner) valid() bool { return p != nil && p.SCID() != "" && CheckName(p.Name) == nil }

// Write stores the trust store durably.
func (b *Book) Write(path string) error {
	text, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	if err := atomicfile.Write(path, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("store the partners: %w", err)
	}
	return nil
}

// Clone returns a copy that the caller may change. It has the same partners and issuers.
func (b *Book) Clone() *Book {
	c := *b
	c.Partners, c.Distrusted, c.Issuers = slices.Clone(b.Partners), slices.Clone(b.Distrusted), slices.Clone(b.Issuers)
	c.Foreign = slices.Clone(b.Foreign)
	c.IssuerNodes, c.Offers = maps.Clone(b.IssuerNodes), maps.Clone(b.Offers)
	return &c
}

// Find returns the partner with a name, a DID or an SCID, removed or not; nil if there is none.
func (b *Book) Find(name string) *Partner {
	scid := webvh.SCID(did.DID(name))
	i := slices.IndexFunc(b.Partners, func(p *Partner) bool { return p.Name == name || p.SCID() == scid || p.SCID() == name })
	if i < 0 {
		return nil
	}
	return b.Partners[i]
}

// Put adds a partner, or replaces the entry of the same organization.
func (b *Book) Put(p *Partner) error {
	i := slices.IndexFunc(b.Partners, func(old *Partner) bool { return old.SCID() == p.SCID() })
	switch {
	case i >= 0:
		b.Partners[i] = p
	case len(b.Partners) >= MaxPartners:
		return interact.Errorf(interact.Usage, "use another organization", "there are %d partners, with former ones, the most that are possible", MaxPartners)
	default:
		b.Partners = append(b.Partners, p)
	}
	return nil
}

// Change replaces the entry of a partner by one that f has changed, as an operator does.
func (b *Book) Change(p *Partner, now time.Time, f func(*Partner)) *Partner {
	c := *p
	f(&c)
	if c.Changed = now.UTC(); !c.Changed.After(p.Changed) { // the clock of another issuer is ahead
		c.Changed = p.Changed.Add(time.Nanosecond)
	}
	b.Partners[slices.Index(b.Partners, p)] = &c
	return &c
}

// Bind notes which node has an issuing key of the own organization, so that its revocation excludes the key. If another node had the key, it
// has replaced its own key.
func (b *Book) Bind(method string, node did.DID) {
	if b.IssuerNodes == nil {
		b.IssuerNodes = map[string]did.DID{}
	}
	if old := b.IssuerNodes[method]; old != "" {
		b.Rename(old, node)
	}
	b.IssuerNodes[method] = node
}

// Rename makes a node that replaced its key known by the new one: the issuing key that it has, and the addresses at which it is an issuer.
func (b *Book) Rename(from, to did.DID) {
	for method, node := range b.IssuerNodes {
		if node == from {
			b.IssuerNodes[method] = to
		}
	}
	for i, addr := range b.Issuers {
		if start, ok := strings.CutSuffix(addr, "/p2p/"+from.PeerText()); ok {
			b.Issuers[i] = start + "/p2p/" + to.PeerText()
		}
	}
}

var (
	petname  = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,31}$`)
	keywords = []string{"own", "partners", "partner", "members", "member", "local", "anyone", "untrusted", "token", "group", "node", "did"}
)

// CheckName returns an error if name cannot be the name of a partner in rules.
func CheckName(name string) error {
	if !petname().MatchString(name) || slices.Contains(keywords, name) {
		return interact.Errorf(interact.Usage, "use 1 to 32 lower-case letters, digits and hyphens, for example globex; "+strings.Join(keywords, ", ")+
			" have other meanings", "%q cannot be the name of a partner", interact.Excerpt(name, 64))
	}
	return nil
}

// NameOf returns the default name of an organization: the first label of its domain.
func NameOf(id did.DID) string {
	name, _, _ := strings.Cut(webvh.Location(id), ".")
	name, _, _ = strings.Cut(strings.ToLower(name), "%")
	return name
}

// NewName returns the name of a new partner: given, or if that is empty the default one. own is the own organization, or empty.
func (b *Book) NewName(given string, id, own did.DID) (string, error) {
	name := given
	if name == "" {
		name = NameOf(id)
	}
	if err := CheckName(name); err != nil {
		return "", err
	}
	scid := webvh.SCID(id)
	if taken := b.Find(name); taken != nil && taken.SCID() != scid || b.FindIssuer(name) != nil || own != "" && NameOf(own) == name && webvh.SCID(own) != scid {
		return "", interact.Errorf(interact.Usage, "choose another name: rules name organizations by it", "the name %q is taken by another organization or issuer", name)
	}
	return name, nil
}

// FreeName returns a name for a partner for which no operator gives one here: wanted, or one with a number.
func (b *Book) FreeName(wanted string, id, own did.DID) string {
	if CheckName(wanted) != nil {
		wanted = "partner"
	}
	given := wanted
	for n := 2; ; n++ {
		if name, err := b.NewName(given, id, own); err == nil {
			return name
		}
		given = fmt.Sprintf("%.28s-%d", wanted, n)
	}
}
