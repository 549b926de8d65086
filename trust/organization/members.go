package organization

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/big"
	"os"
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
)

// NodeRole is the role of every node.
const NodeRole = "node"

// Life is the validity of a credential for which the caller names none.
const Life = 24 * time.Hour

// maxEntries limits the entries of the status list that are in use, so that a random one is likely to be free.
const maxEntries = vc.MinEntries / 2

// A Member is a node, or an agent with a key of its own, that this issuer knows.
type Member struct {
	DID   did.DID  `json:"did"`
	Host  did.DID  `json:"host,omitempty"` // the node of an agent; empty: the member is a node
	Roles []string `json:"roles"`
	// Index is the entry of the member in the status list of this issuer, or -1 if this issuer only revoked it.
	Index int `json:"index"`
	// Admitted is the time of the decision about the roles.
	Admitted time.Time `json:"admitted"`
	// Until is the end of the newest credential that this issuer issued. Zero: none.
	Until time.Time `json:"until,omitzero"`
	// Revoked is the time of the revocation. Zero: the member is not revoked.
	Revoked time.Time `json:"revoked,omitzero"`
	// Replaces is the key of the same node before.
	Replaces did.DID `json:"replaces,omitempty"`
}

// A book is the content of issued.json: what an issuer must not forget.
type book struct {
	Format  int      `json:"format"`  // 1
	Version uint64   `json:"version"` // the lists of this issuer have this version or a later one
	Set     []int    `json:"set"`     // the entries of the own status list that are set, sorted
	Members []Member `json:"members"` // sorted by DID
	// Others are the revocations of the other issuers, by the id of the list.
	Others map[string]other `json:"others,omitempty"`
}

// An other is what the status lists of another issuer revoke.
type other struct {
	Version uint64                `json:"version"`
	Revoked map[did.DID]time.Time `json:"revoked,omitempty"` // of the newest version
	Set     []int                 `json:"set,omitempty"`     // of all versions, sorted
}

// maxOthers limits the lists of other issuers that are kept: those of the present, and of some that were removed.
const maxOthers = 4 * MaxIssuers

// parseBook reads issued.json.
func parseBook(raw []byte) (b book, err error) {
	if err := json.Unmarshal(raw, &b); err != nil {
		return book{}, err
	}
	if b.Format != 1 {
		return book{}, fmt.Errorf("the format %d is unknown", b.Format)
	}
	for i, m := range b.Members {
		if _, err := did.Parse(string(m.DID)); err != nil || m.Index < -1 || m.Index >= vc.MinEntries || i > 0 && b.Members[i-1].DID >= m.DID {
			return book{}, fmt.Errorf("member %d is invalid or in the wrong place", i+1)
		}
	}
	valid := func(set []int) bool { return slices.IsSorted(set) && (len(set) == 0 || set[0] >= 0) }
	if !valid(b.Set) || len(b.Set) > 0 && b.Set[len(b.Set)-1] >= vc.MinEntries {
		return book{}, errors.New("the set entries are invalid")
	}
	for id, o := range b.Others {
		if !valid(o.Set) {
			return book{}, fmt.Errorf("the entries of %.80q are invalid", id)
		}
	}
	return b, nil
}

func (b book) clone() book {
	b.Set, b.Members, b.Others = slices.Clone(b.Set), slices.Clone(b.Members), maps.Clone(b.Others)
	return b
}

// find returns the place of a member, and whether it is there.
func (b *book) find(member did.DID) (int, bool) {
	return slices.BinarySearchFunc(b.Members, member, func(m Member, d did.DID) int {
		switch {
		case m.DID < d:
			return -1
		case m.DID > d:
			return 1
		}
		return 0
	})
}

func insert(set []int, n int) []int {
	i, ok := slices.BinarySearch(set, n)
	if ok {
		return set
	}
	return slices.Insert(set, i, n)
}

func (b *book) isSet(n int) bool {
	_, ok := slices.BinarySearch(b.Set, n)
	return ok
}

// freeIndex returns a random entry that is not in use.
func (b *book) freeIndex() (int, error) {
	used := make(map[int]bool, len(b.Members)+len(b.Set))
	for _, m := range b.Members {
		used[m.Index] = true
	}
	for _, n := range b.Set {
		used[n] = true
	}
	if len(used) >= maxEntries {
		return 0, fmt.Errorf("the status list of this issuer has %d entries in use, the most that are possible: add another issuer", len(used))
	}
	for {
		n, err := rand.Int(rand.Reader, big.NewInt(vc.MinEntries))
		if err != nil {
			return 0, err
		}
		if i := int(n.Int64()); !used[i] {
			return i, nil
		}
	}
}

// loadBook reads issued.json, and the version of status.json. If that file is missing or damaged, the next list is above the version in
// issued.json and above the time in seconds, so that it is above those that peers have.
func (o *Organization) loadBook() error {
	o.book = book{Format: 1}
	raw, err := os.ReadFile(o.path(bookFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("organization: %w", err)
	default:
		if o.book, err = parseBook(raw); err != nil {
			return o.damaged(bookFile, err)
		}
	}
	var l struct {
		Subject struct {
			Version uint64 `json:"version"`
		} `json:"credentialSubject"`
	}
	if raw, err := os.ReadFile(o.path(listFile)); err == nil && json.Unmarshal(raw, &l) == nil && l.Subject.Version < 1<<53 {
		o.book.Version = max(o.book.Version, l.Subject.Version)
	}
	return nil
}

// storeBook makes b durable and uses it. o.mu is held.
func (o *Organization) storeBook(b book) error {
	raw, err := json.Marshal(b)
	if err != nil {
		return err
	}
	if err := o.write(bookFile, raw); err != nil {
		return err
	}
	o.book = b
	return nil
}

// Members returns the members that this issuer knows, sorted by DID. It is empty on other nodes.
func (o *Organization) Members() []Member {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := slices.Clone(o.book.Members)
	for i := range all {
		all[i].Roles = slices.Clone(all[i].Roles)
	}
	return all
}

// Admit makes subject a member with these roles, or changes the roles of a member. host is the node of an agent, a member with at least
// these roles; it is empty for a node, which gets [NodeRole] too. If a member loses a role, its old entry in the status list is set, so that its credentials of this issuer are no longer
// valid; those of other issuers stay valid until they expire, and are renewed there: change the roles at every issuer that knows the member,
// or revoke it. The error wraps [ErrNotIssuer], or [ErrRevoked] if a revocation excludes the member or its host; after 30 days, a member
// can be admitted again.
func (o *Organization) Admit(subject, host did.DID, roles ...string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.method == "" {
		return ErrNotIssuer
	}
	roles, err := checkRoles(subject, host, roles)
	if err != nil {
		return err
	}
	now := o.now()
	if err := o.checkExcluded(now, subject, host); err != nil {
		return err
	}
	b := o.book.clone()
	if err := b.admit(Member{DID: subject, Host: host, Roles: roles, Admitted: now.UTC().Truncate(time.Second)}); err != nil {
		return err
	}
	if err := b.checkHost(host, roles); err != nil {
		return err
	}
	if len(b.Set) != len(o.book.Set) {
		o.list = nil
	}
	return o.storeBook(b)
}

// checkHost returns an error if the host of an agent is not a member, or does not have the roles. An empty host is correct.
func (b *book) checkHost(host did.DID, roles []string) error {
	if host == "" {
		return nil
	}
	i, known := b.find(host)
	if !known || b.Members[i].Host != "" || !b.Members[i].Revoked.IsZero() {
		return fmt.Errorf("%w: %s, the host of the agent", ErrNotMember, host.Short())
	}
	return hasRoles(b.Members[i], roles)
}

// hasRoles returns an error that wraps [ErrRoles] if the member does not have all roles.
func hasRoles(m Member, roles []string) error {
	for _, r := range roles {
		if !slices.Contains(m.Roles, r) {
			return fmt.Errorf("%w %q: %s", ErrRoles, interact.Excerpt(r, 100), m.DID.Short())
		}
	}
	return nil
}

// checkRoles returns the roles of a member, sorted and without duplicates.
func checkRoles(subject, host did.DID, roles []string) ([]string, error) {
	for _, d := range []did.DID{subject, host} {
		if p, err := did.Parse(string(d)); (d != "" || d == subject) && (err != nil || p.Method() != "key") {
			return nil, interact.Errorf(interact.Usage, "", "expected the did:key of a node or of an agent, got %q", interact.Excerpt(string(d), 100))
		}
	}
	roles = slices.Clone(roles)
	if host == "" {
		roles = append(roles, NodeRole)
	}
	slices.Sort(roles)
	roles = slices.Compact(roles)
	for _, r := range roles {
		if !vc.ValidRole(r) {
			return nil, interact.Errorf(interact.Usage, "1 to 64 of a-z, 0-9, dot, underscore and hyphen; the first is a letter or a digit", "%q cannot be a role", interact.Excerpt(r, 100))
		}
	}
	if len(roles) > vc.MaxRoles {
		return nil, interact.Errorf(interact.Usage, "", "a member has at most %d roles, got %d", vc.MaxRoles, len(roles))
	}
	return roles, nil
}

// admit adds or changes a member. A revoked member gets a new entry.
func (b *book) admit(m Member) (err error) {
	i, known := b.find(m.DID)
	if !known {
		if m.Index, err = b.freeIndex(); err == nil {
			b.Members = slices.Insert(b.Members, i, m)
		}
		return err
	}
	old := b.Members[i]
	m.Index, m.Until, m.Replaces = old.Index, old.Until, old.Replaces
	if m.Host != old.Host || slices.ContainsFunc(old.Roles, func(r string) bool { return !slices.Contains(m.Roles, r) }) {
		b.Set = insert(b.Set, old.Index)
	}
	b.Members[i] = m
	return b.renumber(i)
}

// renumber gives a member a free entry if it has none, or one that is set.
func (b *book) renumber(i int) (err error) {
	if n := b.Members[i].Index; n < 0 || b.isSet(n) {
		b.Members[i].Index, err = b.freeIndex()
	}
	return err
}

// checkExcluded returns an error that wraps [ErrRevoked] if a revocation of any issuer excludes one of the members at this time. o.mu is held.
func (o *Organization) checkExcluded(now time.Time, members ...did.DID) error {
	for _, d := range members {
		if d == "" {
			continue
		}
		if i, ok := o.book.find(d); ok {
			if at := o.book.Members[i].Revoked; !at.IsZero() && now.Before(at.Add(Exclusion)) {
				return fmt.Errorf("%w: %s on %s, by this issuer", ErrRevoked, d.Short(), at.Format(time.RFC3339))
			}
		}
		for id, l := range o.book.Others {
			if end := l.Revoked[d]; now.Before(end) {
				return fmt.Errorf("%w: %s until %s, by the issuer of %s", ErrRevoked, d.Short(), end.Format(time.RFC3339), id)
			}
		}
	}
	return nil
}

// Issue issues a credential for a member with these roles; nil means all roles of the member. life is at most 30 days; zero is [Life]. The
// caller has checked that the subject holds its key. The error wraps [ErrNotIssuer], [ErrNotMember], [ErrRevoked] if any issuer revoked the
// member, or [ErrRoles]. It has the code [interact.ClockSkew] if the clock of this machine is before the log.
func (o *Organization) Issue(subject did.DID, roles []string, life time.Duration) (*vc.Credential, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.issue(o.book.clone(), subject, roles, life)
}

// Renew issues a credential for the subject of a credential of the organization, which may be of another issuer: then this issuer admits the
// member with the roles of the credential, unless that issuer is revoked. The host of an agent renews its own credential here first. If the roles were changed here after
// the credential was issued, the change counts, and a member that this issuer does not exclude may renew a credential that is revoked here:
// it has lost a role, or was restored. The caller has checked that the subject, or the host of the agent, holds its key. The errors are those
// of [Organization.Issue] and [vc.Verify].
func (o *Organization) Renew(raw []byte, life time.Duration) (*vc.Credential, error) {
	c, err := vc.Verify(context.Background(), raw, vc.Check{Resolver: o, Now: o.now()})
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.method == "" {
		return nil, ErrNotIssuer
	}
	b := o.book.clone()
	if err := o.follow(&b, c); err != nil {
		return nil, err
	}
	return o.issue(b, c.Subject, nil, life)
}

// follow admits the subject of a valid credential, unless it is a member and was changed here after the credential was issued. A credential of
// an issuing key that is revoked admits nobody, and changes no roles. The error wraps [ErrRevoked]. o.mu is held.
func (o *Organization) follow(b *book, c *vc.Credential) error {
	if o.isRevoked(c) && !o.isOutdated(c) {
		return fmt.Errorf("%w: the credential of %s", ErrRevoked, c.Subject.Short())
	}
	excluded := o.checkExcluded(o.now(), o.keyOf(c.Method))
	i, known := b.find(c.Subject)
	switch {
	case known && !b.Members[i].Revoked.IsZero():
		return fmt.Errorf("%w: %s on %s", ErrRevoked, c.Subject.Short(), b.Members[i].Revoked.Format(time.RFC3339))
	case known && (c.Method == o.method || !c.From.After(b.Members[i].Admitted) || excluded != nil):
		return nil
	case excluded != nil:
		return fmt.Errorf("the issuing key of the credential: %w", excluded)
	}
	return b.admit(Member{DID: c.Subject, Host: c.Host, Roles: slices.Sorted(slices.Values(c.Roles)), Admitted: c.From})
}

// keyOf returns the did:key of an issuing key in the document, or "". o.mu is held.
func (o *Organization) keyOf(method string) did.DID {
	if o.doc == nil {
		return ""
	}
	for _, m := range o.doc.VerificationMethod {
		if m.ID == method {
			id, _ := did.FromKey(m.PublicKey)
			return id
		}
	}
	return ""
}

// IsOutdated reports whether this issuer has changed the roles of the subject after the credential was issued, or has restored it, so that the
// subject should renew the credential here.
func (o *Organization) IsOutdated(c *vc.Credential) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.method != "" && webvh.SCID(c.Issuer) == o.log.SCID() && o.isOutdated(c)
}

func (o *Organization) isOutdated(c *vc.Credential) bool {
	i, known := o.book.find(c.Subject)
	if !known {
		return false
	}
	m := o.book.Members[i]
	switch {
	case !m.Revoked.IsZero():
		return false
	case c.Status.List == o.listID():
		return o.book.isSet(c.Status.Index) || !slices.Equal(c.Roles, m.Roles)
	}
	return !c.From.After(m.Admitted) && !o.isRevoked(c) && !slices.Equal(c.Roles, m.Roles)
}

// isRevoked reports whether the entry of a credential is set in a status list. o.mu is held.
func (o *Organization) isRevoked(c *vc.Credential) bool {
	if c.Status.List == o.listID() {
		return o.book.isSet(c.Status.Index)
	}
	_, ok := slices.BinarySearch(o.book.Others[c.Status.List].Set, c.Status.Index)
	return ok
}

// issue issues a credential and stores b, the changed book. o.mu is held.
func (o *Organization) issue(b book, subject did.DID, roles []string, life time.Duration) (*vc.Credential, error) {
	now := o.now()
	switch {
	case o.method == "":
		return nil, ErrNotIssuer
	case life < 0 || life > vc.MaxLife:
		return nil, interact.Errorf(interact.Usage, "", "a credential is valid for at most %d days, got %s", int(vc.MaxLife.Hours()/24), life)
	}
	if err := o.checkClock(now); err != nil {
		return nil, err
	}
	i, known := b.find(subject)
	if !known {
		return nil, fmt.Errorf("%w: %s", ErrNotMember, subject.Short())
	}
	m := &b.Members[i]
	if !m.Revoked.IsZero() {
		return nil, fmt.Errorf("%w: %s on %s", ErrRevoked, subject.Short(), m.Revoked.Format(time.RFC3339))
	}
	if err := o.checkExcluded(now, subject, m.Host); err != nil {
		return nil, err
	}
	if roles == nil {
		roles = m.Roles
	}
	if err := errors.Join(hasRoles(*m, roles), b.checkHost(m.Host, roles)); err != nil {
		return nil, err
	}
	if err := b.renumber(i); err != nil { // another issuer revoked the member and restored it
		return nil, err
	}
	if life == 0 {
		life = Life
	}
	c := vc.Credential{Type: vc.Node, Issuer: o.log.DID(), Subject: subject, Host: m.Host, Roles: roles, From: now, Until: now.Add(life),
		Status: vc.Status{List: o.listID(), Index: m.Index}}
	if m.Host != "" {
		c.Type = vc.Agent
	}
	signed, err := vc.Issue(c, o.issuing, o.method)
	if err != nil {
		return nil, err
	}
	if signed.Until.After(m.Until) {
		m.Until = signed.Until
	}
	return signed, o.storeBook(b)
}
