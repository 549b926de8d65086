package webvh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/internal/jcs"
)

// errUnwitnessed means that a log lacks the proofs of its witnesses.
var errUnwitnessed = errors.New("too few witnesses approved")

// A Check has the requirements for a log.
type Check struct {
	// DID is the expected DID; one version must have it. Empty: any.
	DID did.DID
	// Witness is the content of did-witness.json, which logs with witnesses need.
	Witness []byte
	// Now is the time of the check. Zero: the current time.
	Now time.Time
}

// Verify verifies each entry of a log: its hash, its signature, its time and its parameters (did:webvh 1.0, Read). raw is at most [MaxLog]
// bytes; the result shares no memory with it. The error wraps [did.ErrInvalid] and names the first wrong version.
func Verify(raw []byte, c Check) (*Log, error) {
	if c.Now.IsZero() {
		c.Now = time.Now()
	}
	l, err := c.verify(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: log of a did:webvh: %w", did.ErrInvalid, err)
	}
	return l, nil
}

func (c Check) verify(raw []byte) (*Log, error) {
	if len(raw) > MaxLog {
		return nil, fmt.Errorf("larger than %d bytes", MaxLog)
	}
	l := &Log{}
	for line := range bytes.Lines(raw) {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if err := l.add(line, c.Now); err != nil {
			return nil, fmt.Errorf("version %d: %w", len(l.entries)+1, err)
		}
	}
	if len(l.entries) == 0 {
		return nil, errors.New("it is empty")
	}
	if c.DID != "" && !slices.ContainsFunc(l.entries, func(e *entry) bool { return e.id == c.DID }) {
		return nil, fmt.Errorf("no version has the DID %s", c.DID)
	}
	return l, l.checkWitnesses(c.Witness, c.Now)
}

// add verifies one entry, and appends it to l.
func (l *Log) add(line []byte, now time.Time) error {
	doc, err := decode(line)
	if err != nil {
		return err
	}
	for name := range doc {
		if !slices.Contains([]string{"versionId", "versionTime", "parameters", "state", "proof"}, name) {
			return fmt.Errorf("the member %q is unknown", name)
		}
	}
	e := &entry{}
	var previous *entry
	if len(l.entries) > 0 {
		previous = l.head()
	}
	if err := e.setTime(doc["versionTime"], previous, now); err != nil {
		return err
	}
	changes, ok := doc["parameters"].(map[string]any)
	if e.state, _ = doc["state"].(map[string]any); !ok || e.state == nil {
		return errors.New("parameters or state is not an object")
	}
	scid, signers, err := e.setParameters(changes, previous)
	if err != nil {
		return err
	}
	if previous == nil {
		want, err := scidOf(doc, scid)
		if err != nil {
			return err
		}
		if want != scid {
			return fmt.Errorf("the SCID is %s, the hash of the entry %s", scid, want)
		}
	} else {
		scid = l.SCID()
	}
	before := scid
	if previous != nil {
		before = previous.versionID
	}
	e.versionID, _ = doc["versionId"].(string)
	if want := fmt.Sprintf("%d-%s", len(l.entries)+1, hashOf(doc, before)); e.versionID != want {
		return fmt.Errorf("the versionId is %q, expected %q", e.versionID, want)
	}
	if err := e.setID(scid, previous); err != nil {
		return err
	}
	if err := verifyProof(doc, signers, now); err != nil {
		return err
	}
	l.entries = append(l.entries, e)
	if l.raw, err = jcs.Append(l.raw, doc); err != nil {
		return err
	}
	l.raw = append(l.raw, '\n')
	return nil
}

// setTime reads versionTime: UTC, later than that of the version before, and at most [Skew] in the future.
func (e *entry) setTime(v any, previous *entry, now time.Time) error {
	text, _ := v.(string)
	t, err := proof.DateTime(text)
	if err != nil || !strings.HasSuffix(text, "Z") && !strings.HasSuffix(text, "+00:00") {
		return fmt.Errorf("versionTime %q is not a time in UTC", text)
	}
	if previous != nil && !t.After(previous.time) {
		return fmt.Errorf("versionTime %s is not after that of the version before", text)
	}
	if t.After(now.Add(Skew)) {
		return fmt.Errorf("versionTime %s is in the future", text)
	}
	e.time = t
	return nil
}

// setID reads the DID of the document: it has the SCID of the log; only a portable log changes the rest, and keeps the old DID as an alias.
func (e *entry) setID(scid string, previous *entry) error {
	text, _ := e.state["id"].(string)
	id, err := did.Parse(text)
	if err != nil {
		return fmt.Errorf("the id of the document: %w", err)
	}
	if _, err := URL(id); err != nil {
		return fmt.Errorf("the id of the document: %w", err)
	}
	if SCID(id) != scid {
		return fmt.Errorf("the document has the SCID %s, the log %s", SCID(id), scid)
	}
	if previous != nil && previous.id != id {
		if !e.active.portable {
			return fmt.Errorf("the DID changed from %s, but the log is not portable", previous.id)
		}
		if !slices.Contains(list(e.state["alsoKnownAs"]), any(string(previous.id))) {
			return fmt.Errorf("the DID changed, but alsoKnownAs lacks %s", previous.id)
		}
	}
	e.id = id
	return nil
}

// setParameters applies the parameters of an entry, and returns the SCID of a first entry, and the keys that may sign the entry.
func (e *entry) setParameters(changes map[string]any, previous *entry) (scid string, signers []string, err error) {
	e.active = parameters{ttl: time.Hour}
	if previous != nil {
		if previous.active.deactivated {
			return "", nil, errors.New("the version before deactivated the DID")
		}
		e.active = previous.active
	}
	for name, v := range changes {
		if err := e.active.set(name, v, previous == nil); err != nil {
			return "", nil, err
		}
	}
	if previous == nil {
		scid, _ = changes["scid"].(string)
		if !did.IsHash(scid) {
			return "", nil, fmt.Errorf("%q is not an SCID", scid)
		}
		if changes["method"] != version || len(e.active.updateKeys) == 0 {
			return "", nil, fmt.Errorf("expected the method %s and updateKeys", version)
		}
		return scid, e.active.updateKeys, nil
	}
	if len(previous.active.nextKeyHashes) == 0 {
		return "", previous.active.updateKeys, nil
	}
	if changes["updateKeys"] == nil || changes["nextKeyHashes"] == nil {
		return "", nil, errors.New("the version before has nextKeyHashes: expected updateKeys and nextKeyHashes")
	}
	for _, key := range e.active.updateKeys {
		if !slices.Contains(previous.active.nextKeyHashes, KeyHash(key)) {
			return "", nil, fmt.Errorf("the update key %s has no hash in the version before", key)
		}
	}
	return "", e.active.updateKeys, nil
}

// set applies one parameter. Null is its default.
func (p *parameters) set(name string, v any, first bool) (err error) {
	fail := func(want string) error { return fmt.Errorf("the parameter %s is not %s", name, want) }
	switch name {
	case "method":
		if v != version {
			return fail(version)
		}
	case "scid":
		if !first {
			return errors.New("only the first version has the parameter scid")
		}
	case "updateKeys":
		p.updateKeys, err = texts(v, func(s string) bool {
			_, err := did.Parse("did:key:" + s)
			return err == nil
		})
	case "nextKeyHashes":
		p.nextKeyHashes, err = texts(v, did.IsHash)
	case "watchers":
		_, err = texts(v, func(string) bool { return true })
	case "portable":
		b, ok := v.(bool)
		if !ok && v != nil {
			return fail("a boolean")
		}
		if b && !first && !p.portable {
			return errors.New("only the first version can make a log portable")
		}
		p.portable = b
	case "deactivated":
		b, ok := v.(bool)
		if !ok && v != nil {
			return fail("a boolean")
		}
		p.deactivated = b
	case "ttl":
		n, ok := v.(float64)
		if v == nil {
			n, ok = 3600, true
		}
		if !ok || n < 0 || n > 1<<31 || n != math.Trunc(n) {
			return fail("a number of seconds from 0 to 2^31")
		}
		p.ttl = time.Duration(n) * time.Second
	case "witness":
		p.witness, err = readWitness(v)
	default:
		return fmt.Errorf("the parameter %s is unknown", name)
	}
	if err != nil {
		return fmt.Errorf("the parameter %s: %w", name, err)
	}
	return nil
}

// texts reads an array of valid strings without duplicates.
func texts(v any, valid func(string) bool) (all []string, err error) {
	values, ok := v.([]any)
	if !ok && v != nil || len(values) > maxKeys {
		return nil, fmt.Errorf("expected an array of at most %d", maxKeys)
	}
	for _, one := range values {
		s, ok := one.(string)
		if !ok || !valid(s) || slices.Contains(all, s) {
			return nil, fmt.Errorf("the value %v is invalid or repeated", one)
		}
		all = append(all, s)
	}
	return all, nil
}

// readWitness reads the rule of witnesses; {} and null are none.
func readWitness(v any) (w witness, err error) {
	m, ok := v.(map[string]any)
	if v == nil || ok && len(m) == 0 {
		return w, nil
	}
	all, _ := m["witnesses"].([]any)
	n, _ := m["threshold"].(float64)
	if len(all) == 0 || len(all) > maxWitnesses || n != math.Trunc(n) || n < 1 || int(n) > len(all) {
		return w, fmt.Errorf("expected 1 to %d witnesses, and a threshold from 1 to their number", maxWitnesses)
	}
	for _, one := range all {
		m, _ := one.(map[string]any)
		text, _ := m["id"].(string)
		id, err := did.Parse(text)
		if err != nil || id.Method() != "key" || slices.Contains(w.ids, id) {
			return witness{}, fmt.Errorf("the witness %q is not a did:key of an Ed25519 key, or repeated", text)
		}
		w.ids = append(w.ids, id)
	}
	w.threshold = int(n)
	return w, nil
}

// verifyProof verifies the proofs of an entry, which must all be by keys in signers.
func verifyProof(doc map[string]any, signers []string, now time.Time) error {
	v, err := proof.Verify(context.Background(), doc, proof.Check{Now: now})
	if err != nil {
		return err
	}
	for _, owner := range v.Owners {
		if !slices.Contains(signers, owner.Multibase()) {
			return fmt.Errorf("the key %s may not sign this version", owner.Multibase())
		}
	}
	return nil
}

// checkWitnesses checks that enough witnesses approved each version that needs them. The rule of a version is the one of the version
// before; a first rule applies at once. A proof for a version approves the versions before it, too.
func (l *Log) checkWitnesses(raw []byte, now time.Time) error {
	var approved map[did.DID]int // by witness: the number of versions that it approved
	for i, e := range l.entries {
		rule := e.active.witness
		if i > 0 && l.entries[i-1].active.witness.threshold > 0 {
			rule = l.entries[i-1].active.witness
		}
		if rule.threshold == 0 {
			continue
		}
		if approved == nil {
			var err error
			if approved, err = l.approvals(raw, now); err != nil {
				return fmt.Errorf("did-witness.json: %w", err)
			}
		}
		n := 0
		for _, id := range rule.ids {
			if approved[id] > i {
				n++
			}
		}
		if n < rule.threshold {
			return fmt.Errorf("version %d: %w: %d of %d", i+1, errUnwitnessed, n, rule.threshold)
		}
	}
	return nil
}

// approvals returns the number of versions that each witness approved. Invalid proofs, and proofs for other logs, do not count.
func (l *Log) approvals(raw []byte, now time.Time) (map[did.DID]int, error) {
	approved := map[did.DID]int{}
	if len(raw) == 0 {
		return approved, nil
	}
	v, err := jcs.Decode(raw, MaxLog)
	if err != nil {
		return nil, err
	}
	all, ok := v.([]any)
	if !ok {
		return nil, errors.New("expected an array")
	}
	seen := 0
	for _, one := range all {
		m, _ := one.(map[string]any)
		n := slices.IndexFunc(l.entries, func(e *entry) bool { return e.versionID == m["versionId"] }) + 1
		if n == 0 {
			continue
		}
		if seen++; seen > maxSeen {
			return nil, fmt.Errorf("more than %d versions: expected the last proof of each witness", maxSeen)
		}
		proofs := list(m["proof"])
		if p, ok := m["proof"].(map[string]any); ok {
			proofs = []any{p}
		}
		for _, p := range proofs[:min(len(proofs), maxWitnesses)] {
			doc := map[string]any{"versionId": m["versionId"], "proof": p}
			if v, err := proof.Verify(context.Background(), doc, proof.Check{Now: now}); err == nil {
				approved[v.Owner] = max(approved[v.Owner], n)
			}
		}
	}
	return approved, nil
}
