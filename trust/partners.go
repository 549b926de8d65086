package trust

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/atomicfile"
)

// A partner is an organization whose members have rights here. Trust.mu owns it.
type partner struct {
	Name  string   `json:"name"` // the petname: one organization has it forever
	DID   did.DID  `json:"did"`
	Roles []string `json:"roles,omitempty"` // those of its roles that count; empty: all
	// Since is the start of the partnership, and Until its end; zero: none.
	Since time.Time `json:"since"`
	Until time.Time `json:"until,omitzero"`
	// Confirmed is false until the operator has compared the check words, unless the invitation named this organization.
	Confirmed bool `json:"confirmed"`
	// Forked is true after a second history of its log was seen.
	Forked bool     `json:"forked,omitempty"`
	Addrs  []string `json:"addrs,omitempty"` // of issuer nodes, with /p2p
	// Removed is the time of the end by the operator; zero: it is in force. Its name stays taken.
	Removed time.Time `json:"removed,omitzero"`
	// RemovedHere is true if it was removed on this node, not by the list of the organization.
	RemovedHere bool `json:"removed_here,omitempty"`
	// Words are the check words of both organizations.
	Words []string `json:"words,omitempty"`
	// Shared is true if the signed list of the own organization has it.
	Shared bool `json:"shared,omitempty"`
}

func (p *partner) suspended() bool { return p.Forked }

func (p *partner) removed() bool { return !p.Removed.IsZero() }

// A book is the trust store of a node, the file trust.json.
type book struct {
	Version    int        `json:"version"`
	Partners   []*partner `json:"partners,omitempty"`
	Distrusted []did.DID  `json:"distrusted,omitempty"`
	// Issuers are the addresses of issuer nodes of the own organization, with /p2p.
	Issuers []string `json:"issuers,omitempty"`
	// IssuerNodes has the nodes of the issuing keys of the own organization, by their DID URLs, as far as they are known.
	IssuerNodes map[string]did.DID `json:"issuer_nodes,omitempty"`
	// Offers are what open invitations promise, by their ids.
	Offers map[string]offer `json:"offers,omitempty"`
	// Shared is the version of the list of partners of the own organization.
	Shared uint64 `json:"shared,omitempty"`
}

const bookVersion = 1

// Limits of the book.
const (
	maxPartners   = 256
	maxDistrusted = 4096
	maxAddrs      = 16
	maxBook       = 4 << 20 // bytes
)

// readBook reads the trust store; a missing file is an empty one.
func readBook(path string) (*book, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &book{Version: bookVersion}, nil
	}
	if err != nil {
		return nil, err
	}
	return parseBook(text)
}

func parseBook(text []byte) (*book, error) {
	b := &book{}
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
		if p == nil || webvh.SCID(p.DID) == "" || checkName(p.Name) != nil {
			return nil, fmt.Errorf("partner %d is not valid", i+1)
		}
	}
	return b, nil
}

// saveLocked stores the book durably. Trust.mu is held.
func (t *Trust) saveLocked() error {
	if t.o.Dir == "" {
		return nil
	}
	text, err := json.MarshalIndent(t.book, "", "  ")
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(t.o.Dir, "trust.json"), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("store the partners: %w", err)
	}
	return nil
}

// find returns the partner with the name or the DID, removed or not; nil if there is none.
func (b *book) find(name string) *partner {
	scid := webvh.SCID(did.DID(name))
	i := slices.IndexFunc(b.Partners, func(p *partner) bool {
		return p.Name == name || scid != "" && webvh.SCID(p.DID) == scid || webvh.SCID(p.DID) == name
	})
	if i < 0 {
		return nil
	}
	return b.Partners[i]
}

var (
	petname  = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)
	keywords = []string{"own", "partners", "partner", "members", "member", "local", "anyone", "untrusted", "token", "group", "node", "did"}
)

// checkName returns an error if name cannot be the name of a partner in rules.
func checkName(name string) error {
	if !petname.MatchString(name) || slices.Contains(keywords, name) {
		return interact.Errorf(interact.Usage, "use 1 to 32 lower-case letters, digits and hyphens, for example globex; "+strings.Join(keywords, ", ")+
			" have other meanings", "%q cannot be the name of a partner", interact.Excerpt(name, 64))
	}
	return nil
}

// nameOf returns the default name of an organization: the first label of its domain.
func nameOf(id did.DID) string {
	name, _, _ := strings.Cut(webvh.Location(id), ".")
	name, _, _ = strings.Cut(strings.ToLower(name), "%")
	return name
}

// newNameLocked returns the name of a new partner; given may be empty. Trust.mu is held.
func (t *Trust) newNameLocked(given string, id did.DID) (string, error) {
	name := given
	if name == "" {
		name = nameOf(id)
	}
	if err := checkName(name); err != nil {
		return "", err
	}
	taken := t.book.find(name)
	if taken != nil && webvh.SCID(taken.DID) != webvh.SCID(id) || t.org != nil && nameOf(t.org.DID()) == name && t.org.SCID() != webvh.SCID(id) {
		return "", interact.Errorf(interact.Usage, "choose another name: rules name organizations by it", "the name %q is taken by another organization", name)
	}
	return name, nil
}

// bindLocked notes durably which node has an issuing key of the own organization, so that its revocation excludes the key.
func (t *Trust) bindLocked(method string, node did.DID) error {
	if t.book.IssuerNodes[method] == node {
		return nil
	}
	if t.book.IssuerNodes == nil {
		t.book.IssuerNodes = map[string]did.DID{}
	}
	if old := t.book.IssuerNodes[method]; old != "" {
		return t.rebindLocked(old, node)
	}
	t.book.IssuerNodes[method] = node
	return t.saveLocked()
}

// issuerNodeLocked reports whether a node has an issuing key that is bound to it.
func (t *Trust) issuerNodeLocked(node did.DID) bool {
	for _, n := range t.book.IssuerNodes {
		if n == node {
			return true
		}
	}
	return false
}
