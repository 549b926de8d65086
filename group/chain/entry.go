package chain

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/internal/lazyregexp"
)

// Limits of a group.
const (
	MaxEntry     = 16 << 10 // bytes
	MaxEntries   = 4096     // of one branch; the last reserved ones are for removals and the dissolution
	MaxMembers   = 512
	MaxThreshold = 8
	MaxLabels    = 8
	MaxRules     = 16
	maxText      = 64
	reserved     = 256
)

// Skew is how far in the future the time of an entry may be.
const Skew = proof.Skew

// Errors of entries. They are wrapped with the reason.
var (
	// ErrInvalid means that no member accepts the entry: its form, its hash, its signatures, or the rights of its signers.
	ErrInvalid = errors.New("entry refused")
	// ErrUnlinked means that the predecessor of the entry is not known here.
	ErrUnlinked = errors.New("the entry before it is missing")
	// ErrTime means that the entry is from the future, or that a clock is wrong.
	ErrTime = errors.New("the time of the entry is in the future")
	// ErrDissolved means that the group was dissolved before.
	ErrDissolved = errors.New("the group is dissolved")
	// ErrFull means that the group has as many members, or its log as many entries, as are permitted.
	ErrFull = errors.New("the limit is reached")
)

// A Kind is what an entry does.
type Kind string

// The kinds of entries. Only admins sign entries.
const (
	Create   Kind = "create"   // by the first admin
	Add      Kind = "add"      // a member that has agreed; of one that is a member: its node
	Role     Kind = "role"     // changes the role of a member
	Remove   Kind = "remove"   // a member, which may have stated that it leaves
	Dissolve Kind = "dissolve" // ends the group; nothing follows
	Approve  Kind = "approve"  // the change of another entry, which takes effect with enough admins
)

// Admin is the role of those who change the group, Plain that of other members without a role of their own.
const (
	Admin = "admin"
	Plain = "member"
)

// A Member of a group.
type Member struct {
	DID  did.DID // a did:key: of a node, or of an agent with a key of its own
	Node did.DID // through which it is reached; equal to DID for a node
	Org  did.DID // the organization in which it was a member when it joined, as the admin verified it; empty: none
	Role string
	// Until is the end of a membership that rests on a credential; zero: none.
	Until time.Time
	By    did.DID // the admin who added it, or gave it its role
	// Since is the number of the entry by which it became a member, or an admin if it is one.
	Since int
	last  int // the number of the last entry that made it a member or moved it
}

// A Rule lets those join whose credential of an issuer states a role.
type Rule struct {
	Issuer did.DID // an organization, or another issuer that the admins' nodes trust
	Role   string  // in the credential; empty: any
	As     string  // the role in the group; never Admin
}

// An Op is the change that an entry makes.
type Op struct {
	Kind Kind
	// Of create. Threshold is the number of admins who must agree to a change; if there are fewer, all must.
	Name      string
	Labels    map[string]string // "tenant", "channel"
	Threshold int
	Join      []Rule
	// Of all kinds but dissolve and approve: the member; of create, the first admin. Fields that the kind does not need are empty.
	Member Member
	// Credential is the hash of the credential by which a member joined; empty: it joined by an invitation.
	Credential string
	// Statement is that of the member: of add, that it joins; of remove, that it leaves, nil: an admin removed it.
	Statement *Statement
	// Entry is the ID of the entry that is approved.
	Entry string
}

// A Statement is what a member signs: that it joins a group, or leaves it.
type Statement struct {
	Group  string
	Member did.DID
	Node   did.DID // through which it is reached; empty: it leaves
	Role   string  // with which it joins
	// After is the newest entry that the member knows. What the member signed before the last change of its membership does not count.
	After   string
	Created time.Time
	number  int    // of After
	Raw     []byte // canonical JSON
	doc     map[string]any
}

// Joins reports whether the member joins; else it leaves.
func (s *Statement) Joins() bool { return s.Node != "" }

// MaxAge is the age of a statement of a member that joins at the time of the entry, at most.
const MaxAge = 24 * time.Hour

// An Entry is one link of the chain. It is immutable.
type Entry struct {
	ID     string // versionId, "3-Qm…"
	Number int    // from 1
	Prev   string // ID of the predecessor; empty: the first one
	Time   time.Time
	Op     Op
	Signer did.DID
	Raw    []byte // canonical JSON with the proof
	doc    map[string]any
}

var (
	roleForm  = lazyregexp.New(`^[a-z0-9][a-z0-9._-]{0,63}$`)
	labelForm = lazyregexp.New(`^[a-z][a-z0-9-]{0,31}$`)
)

// ValidName reports whether a text can be the name of a group: 1 to 64 letters, digits, and ". _ -", beginning with a letter or a digit.
func ValidName(name string) bool { return isName(name) && !did.IsHash(name) }

// isName has no regular expression: 64 repetitions of the letters of Unicode have 2.5 MB in compiled form.
func isName(text string) bool {
	for i, r := range text {
		if !unicode.In(r, unicode.L, unicode.N) && (i == 0 || !strings.ContainsRune("._-", r)) {
			return false
		}
	}
	n := utf8.RuneCountInString(text)
	return n >= 1 && n <= 64
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}

// read decodes an entry and verifies its hash. Its signature and the rights of its signer are not checked.
func read(raw []byte) (*Entry, error) {
	doc, err := jcs.Object(raw, MaxEntry)
	if err != nil {
		return nil, invalid("%w", err)
	}
	e := &Entry{doc: doc}
	if e.Signer, err = readProof(doc["proof"]); err != nil {
		return nil, invalid("%w", err)
	}
	body := maps.Clone(doc)
	delete(body, "proof")
	if err := e.readBody(body); err != nil {
		return nil, invalid("%w", err)
	}
	e.Raw, err = jcs.Append(nil, doc)
	return e, err
}

// verify verifies the signature.
func (e *Entry) verify(now time.Time) error {
	if e.Time.After(now.Add(Skew)) {
		return fmt.Errorf("%w: %s is %s from now; compare the clocks", ErrTime, stamp(e.Time), e.Time.Sub(now).Round(time.Second))
	}
	v, err := proof.Verify(context.Background(), e.doc, proof.Check{Now: now})
	switch {
	case errors.Is(err, proof.ErrTime):
		return fmt.Errorf("%w: %w", ErrTime, err)
	case err != nil:
		return invalid("%w", err)
	case v.Owner != e.Signer:
		return invalid("the proof is of %s", v.Owner.Short())
	}
	e.doc = nil
	return nil
}

// readProof returns the signer of a proof. There is one signature, which never ends: the entry is the same for all members, at all times.
func readProof(v any) (did.DID, error) {
	p, ok := v.(map[string]any)
	if !ok {
		return "", errors.New("the proof is not an object")
	}
	if err := only(p, "type", "cryptosuite", "created", "verificationMethod", "proofPurpose", "proofValue"); err != nil {
		return "", err
	}
	method, _ := p["verificationMethod"].(string)
	u, err := did.ParseURL(method)
	return u.DID, err
}

func (e *Entry) readBody(body map[string]any) (err error) {
	if err := only(body, "versionId", "versionTime", "prev", "op"); err != nil {
		return err
	}
	e.ID, _ = body["versionId"].(string)
	if e.Number, err = numberOf(e.ID); err != nil {
		return err
	}
	e.Prev, _ = body["prev"].(string)
	if (e.Number == 1) != (body["prev"] == nil) {
		return errors.New("prev is missing, or the first entry has one")
	}
	if e.Number > 1 {
		if n, err := numberOf(e.Prev); err != nil || n != e.Number-1 {
			return fmt.Errorf("the entry %d follows %.60q", e.Number, e.Prev)
		}
	}
	if hash, err := hashOf(body, e.Prev); err != nil || e.ID != fmt.Sprintf("%d-%s", e.Number, hash) {
		return errors.New("versionId is not the hash of the entry")
	}
	if e.Time, err = readTime(body["versionTime"]); err != nil {
		return fmt.Errorf("versionTime: %w", err)
	}
	op, _ := body["op"].(map[string]any)
	if err := e.Op.read(op); err != nil {
		return fmt.Errorf("op: %w", err)
	}
	if (e.Op.Kind == Create) != (e.Number == 1) {
		return fmt.Errorf("the entry %d is of kind %s", e.Number, e.Op.Kind)
	}
	return e.checkStatement()
}

// checkStatement checks that the statement of the member is that of the entry.
func (e *Entry) checkStatement() error {
	o, s := &e.Op, e.Op.Statement
	switch {
	case s == nil && o.Kind == Add:
		return errors.New("the member has not agreed")
	case s == nil:
		return nil
	case s.Joins() != (o.Kind == Add) || s.Member != o.Member.DID || s.Node != o.Member.Node || s.Joins() && s.Role != o.Member.Role:
		return errors.New("the statement is of another member, or for another node or role")
	case s.number >= e.Number:
		return fmt.Errorf("the statement of the member follows the entry %d", s.number)
	case s.Joins() && (e.Time.Sub(s.Created) > MaxAge || s.Created.Sub(e.Time) > Skew):
		return fmt.Errorf("the statement of the member is from %s, the entry from %s", stamp(s.Created), stamp(e.Time))
	}
	return nil
}

// placeholder stands for the id of a group in the text whose hash it is.
const placeholder = "{SCID}"

// hashOf returns the hash of an entry without its proof: versionId is replaced by that of the predecessor, or by the placeholder.
func hashOf(body map[string]any, prev string) (string, error) {
	c := maps.Clone(body)
	delete(c, "proof")
	if c["versionId"] = prev; prev == "" {
		c["versionId"] = placeholder
	}
	text, err := jcs.Append(nil, c)
	return did.Hash(text), err
}

// numberOf reads the number of a versionId.
func numberOf(id string) (int, error) {
	number, hash, _ := strings.Cut(id, "-")
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || strconv.Itoa(n) != number || !did.IsHash(hash) {
		return 0, fmt.Errorf("%.80q is not a versionId such as 3-Qm…", id)
	}
	return n, nil
}

// only returns an error if m has members other than names.
func only(m map[string]any, names ...string) error {
	for name := range m {
		if !slices.Contains(names, name) {
			return fmt.Errorf("unknown member %.64q: a newer version of lmosd may have written it", name)
		}
	}
	return nil
}

// fields are the members of the operations.
var fields = map[Kind][]string{
	Create: {"member", "node", "org", "name", "labels", "threshold", "join", "nonce"}, Add: {"member", "node", "org", "role", "until", "credential", "statement"},
	Role: {"member", "role"}, Remove: {"member", "statement"}, Dissolve: nil, Approve: {"entry"},
}

func (o *Op) read(m map[string]any) (err error) {
	kind, _ := m["kind"].(string)
	o.Kind = Kind(kind)
	names, known := fields[o.Kind]
	if !known {
		return fmt.Errorf("unknown kind %.40q: a newer version of lmosd may have written it", kind)
	}
	if err := only(m, append([]string{"kind"}, names...)...); err != nil {
		return err
	}
	switch o.Kind {
	case Dissolve:
		return nil
	case Approve:
		o.Entry, _ = m["entry"].(string)
		_, err := numberOf(o.Entry)
		return err
	}
	if o.Member.DID, err = memberKey(m, "member"); err != nil {
		return err
	}
	if slices.Contains(names, "node") {
		if o.Member.Node, err = memberKey(m, "node"); err != nil {
			return err
		}
	}
	if org, ok := m["org"]; ok {
		text, _ := org.(string)
		if o.Member.Org, err = did.Parse(text); err != nil {
			return fmt.Errorf("org: %w", err)
		}
	}
	if slices.Contains(names, "role") {
		if o.Member.Role, _ = m["role"].(string); !roleForm().MatchString(o.Member.Role) {
			return fmt.Errorf("the role %.80q is invalid", fmt.Sprint(m["role"]))
		}
	}
	if v, ok := m["statement"]; ok {
		doc, _ := v.(map[string]any)
		if o.Statement, err = readStatement(doc); err != nil {
			return err
		}
	}
	switch o.Kind {
	case Create:
		return o.readCreate(m)
	case Add:
		return o.readAdd(m)
	}
	return nil
}

func (o *Op) readAdd(m map[string]any) (err error) {
	if o.Member.Role == Admin {
		return errors.New("members do not join as admins: change the role of a member")
	}
	if v, ok := m["until"]; ok {
		if o.Member.Until, err = readTime(v); err != nil {
			return fmt.Errorf("until: %w", err)
		}
	}
	if v, ok := m["credential"]; ok {
		if o.Credential, _ = v.(string); !did.IsHash(o.Credential) {
			return errors.New("credential is not a hash")
		}
	}
	return nil
}

func (o *Op) readCreate(m map[string]any) error {
	o.Member.Role = Admin
	if o.Name, _ = m["name"].(string); !ValidName(o.Name) {
		return fmt.Errorf("the name %.80q is invalid", fmt.Sprint(m["name"]))
	}
	if nonce, _ := m["nonce"].(string); len(nonce) < 16 || len(nonce) > maxText {
		return errors.New("the nonce is missing")
	}
	threshold, _ := m["threshold"].(float64)
	if o.Threshold = int(threshold); float64(o.Threshold) != threshold || o.Threshold < 1 || o.Threshold > MaxThreshold {
		return fmt.Errorf("the threshold is not a number from 1 to %d", MaxThreshold)
	}
	if v, ok := m["labels"]; ok {
		labels, _ := v.(map[string]any)
		if len(labels) == 0 || len(labels) > MaxLabels {
			return fmt.Errorf("labels is not an object of 1 to %d members", MaxLabels)
		}
		o.Labels = map[string]string{}
		for name, value := range labels {
			text, _ := value.(string)
			if !labelForm().MatchString(name) || !isName(text) {
				return fmt.Errorf("the label %.40q is invalid", name)
			}
			o.Labels[name] = text
		}
	}
	return o.readJoin(m)
}

func (o *Op) readJoin(m map[string]any) error {
	v, ok := m["join"]
	if !ok {
		return nil
	}
	all, _ := v.([]any)
	if len(all) == 0 || len(all) > MaxRules {
		return fmt.Errorf("join is not an array of 1 to %d rules", MaxRules)
	}
	for _, one := range all {
		rule, _ := one.(map[string]any)
		if err := only(rule, "issuer", "role", "as"); err != nil {
			return err
		}
		issuer, _ := rule["issuer"].(string)
		id, err := did.Parse(issuer)
		if err != nil {
			return fmt.Errorf("join: %w", err)
		}
		r := Rule{Issuer: id, As: Plain}
		for name, to := range map[string]*string{"role": &r.Role, "as": &r.As} {
			if v, ok := rule[name]; ok {
				if *to, _ = v.(string); !roleForm().MatchString(*to) {
					return fmt.Errorf("join: %s is not a role", name)
				}
			}
		}
		if r.As == Admin {
			return errors.New("join: the role of those who join by a credential is never admin")
		}
		o.Join = append(o.Join, r)
	}
	return nil
}

func memberKey(m map[string]any, name string) (did.DID, error) {
	text, _ := m[name].(string)
	id, err := did.Parse(text)
	if err == nil && id.Method() != "key" {
		err = errors.New("expected a did:key")
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return id, nil
}

// document returns the operation as decoded JSON.
func (o *Op) document() map[string]any {
	m := map[string]any{"kind": string(o.Kind)}
	put := func(name, value string) {
		if value != "" {
			m[name] = value
		}
	}
	put("member", string(o.Member.DID))
	put("node", string(o.Member.Node))
	put("org", string(o.Member.Org))
	put("credential", o.Credential)
	put("entry", o.Entry)
	if o.Kind != Create {
		put("role", o.Member.Role)
		if o.Statement != nil {
			m["statement"] = o.Statement.doc
		}
		if !o.Member.Until.IsZero() {
			m["until"] = stamp(o.Member.Until)
		}
		return m
	}
	m["name"], m["threshold"] = o.Name, float64(o.Threshold)
	if len(o.Labels) > 0 {
		labels := map[string]any{}
		for name, value := range o.Labels {
			labels[name] = value
		}
		m["labels"] = labels
	}
	var rules []any
	for _, r := range o.Join {
		rule := map[string]any{"issuer": string(r.Issuer), "as": r.As}
		if r.Role != "" {
			rule["role"] = r.Role
		}
		rules = append(rules, rule)
	}
	if len(rules) > 0 {
		m["join"] = rules
	}
	return m
}

// The types of statements of members.
const (
	joinType  = "GroupJoin"
	leaveType = "GroupLeave"
)

// SignJoin returns the statement of the member of s that it joins a group with a role, and is reached through node. after is the newest entry that it knows.
func SignJoin(group, after string, node did.DID, role string, s did.Signer, now time.Time) (*Statement, error) {
	return signStatement(map[string]any{"type": joinType, "group": group, "after": after, "node": string(node), "role": role}, s, now)
}

// SignLeave returns the statement of the member of s that it leaves a group.
func SignLeave(group, after string, s did.Signer, now time.Time) (*Statement, error) {
	return signStatement(map[string]any{"type": leaveType, "group": group, "after": after}, s, now)
}

func signStatement(doc map[string]any, s did.Signer, now time.Time) (*Statement, error) {
	doc["member"], doc["created"] = string(s.DID()), stamp(now)
	p, err := proof.Sign(doc, s, proof.Options{Created: now})
	if err != nil {
		return nil, err
	}
	doc["proof"] = p
	return readStatement(doc)
}

// ReadStatement verifies the statement of a member, in JSON. The error wraps [ErrInvalid].
func ReadStatement(raw []byte) (*Statement, error) {
	doc, err := jcs.Object(raw, MaxEntry)
	if err != nil {
		return nil, invalid("statement: %w", err)
	}
	s, err := readStatement(doc)
	if err != nil {
		return nil, invalid("%w", err)
	}
	return s, nil
}

func readStatement(doc map[string]any) (*Statement, error) {
	s, err := readStatementBody(doc)
	if err != nil {
		return nil, fmt.Errorf("statement: %w", err)
	}
	return s, nil
}

func readStatementBody(doc map[string]any) (*Statement, error) {
	created, err := readTime(doc["created"])
	if err != nil {
		return nil, fmt.Errorf("created: %w", err)
	}
	if _, err := readProof(doc["proof"]); err != nil {
		return nil, err
	}
	v, err := proof.Verify(context.Background(), doc, proof.Check{Now: created}) // its time is compared with those of entries
	if err != nil {
		return nil, err
	}
	s := &Statement{Created: created, doc: doc}
	s.Group, _ = v.Document["group"].(string)
	if s.Member, err = memberKey(v.Document, "member"); err != nil {
		return nil, err
	}
	s.After, _ = v.Document["after"].(string)
	if s.number, err = numberOf(s.After); err != nil {
		return nil, fmt.Errorf("after: %w", err)
	}
	names := []string{"type", "group", "after", "member", "created"}
	switch v.Document["type"] {
	case joinType:
		names = append(names, "node", "role")
		if s.Node, err = memberKey(v.Document, "node"); err != nil {
			return nil, err
		}
		if s.Role, _ = v.Document["role"].(string); !roleForm().MatchString(s.Role) {
			return nil, errors.New("the role is invalid")
		}
	case leaveType:
	default:
		return nil, fmt.Errorf("the type is neither %s nor %s", joinType, leaveType)
	}
	if !did.IsHash(s.Group) || v.Owner != s.Member {
		return nil, errors.New("it names no group, or another key than that of the member signed it")
	}
	if err := only(v.Document, names...); err != nil {
		return nil, err
	}
	s.Raw, err = jcs.Append(nil, doc)
	return s, err
}

// timeForm has milliseconds: several members may join within a second.
const timeForm = "2006-01-02T15:04:05.000Z"

func stamp(t time.Time) string { return t.UTC().Format(timeForm) }

func readTime(v any) (time.Time, error) {
	text, _ := v.(string)
	t, err := time.Parse(timeForm, text)
	if err != nil || t.Format(timeForm) != text {
		return time.Time{}, fmt.Errorf("%.40q is not a time such as 2026-11-20T12:00:00.000Z", text)
	}
	return t, nil
}
