package organization

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/atomicfile"
	"github.com/lmosd/lmosd/internal/lazyregexp"
)

// MaxIssuers is the largest number of issuing keys in a document.
const MaxIssuers = 4

// MaxEndpoints is the largest number of addresses of nodes in a document.
const MaxEndpoints = 8

var (
	// ErrRollback means that a log is older than the one that the node has.
	ErrRollback = errors.New("the log is older than the stored one")
	// ErrForked means that two valid logs contradict each other. The error is a [*ForkedError].
	ErrForked = errors.New("the log contradicts the stored one")
	// ErrSuccession means that a version of the log excludes the next root key and is not signed by it: the root key was stolen.
	ErrSuccession = errors.New("the log excludes the next root key without its signature")
)

// A ForkedError has two valid logs of the organization that contradict each other: evidence that the holder of the keys, or a thief, signed
// two histories.
type ForkedError struct{ Stored, Other *webvh.Log }

// Error names the versions.
func (e *ForkedError) Error() string {
	return fmt.Sprintf("%s: %s and %s", ErrForked, e.Stored.Head(), e.Other.Head())
}

// Unwrap returns [ErrForked].
func (e *ForkedError) Unwrap() error { return ErrForked }

// SetLog stores a verified log that extends the stored one; see [CheckLog] for the errors. The stored log does not change on an error.
func (o *Organization) SetLog(l *webvh.Log) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := CheckLog(o.log, l); err != nil || l.Head() == o.log.Head() {
		return err
	}
	return o.storeLog(l)
}

// CheckLog checks that l may replace the stored log of an organization, own or partner: it is the same, or extends it. nil as stored log is
// correct. A shorter one gives [ErrRollback]; one that contradicts the stored one gives a [*ForkedError], with one exception: if the first
// version that differs is signed by the next root key in l, and not in the stored log, l may replace it, because the owner recovered the
// organization from a thief of the root key. A log that excludes the next root key without its signature gives [ErrSuccession].
func CheckLog(stored, l *webvh.Log) error {
	if err := checkSuccession(l); err != nil || stored == nil {
		return err
	}
	switch {
	case l.SCID() != stored.SCID():
		return fmt.Errorf("%w: it is the log of %s, not of %s", did.ErrInvalid, l.DID().Short(), stored.DID().Short())
	case l.Forked(stored) && !recoveredFrom(l, stored):
		return &ForkedError{stored, l}
	case l.Len() < stored.Len() && !l.Forked(stored):
		return fmt.Errorf("%w: version %d, the stored one is %d", ErrRollback, l.Len(), stored.Len())
	}
	return nil
}

// storeLog makes l durable and uses it. o.mu is held.
func (o *Organization) storeLog(l *webvh.Log) error {
	if err := o.write(logFile, l.Bytes()); err != nil {
		return err
	}
	o.setLog(l)
	return o.loadRoots(l)
}

// setLog uses a log. o.mu is held, or o is new.
func (o *Organization) setLog(l *webvh.Log) {
	defer o.show()
	o.log, o.method = l, ""
	doc, err := l.Document()
	if err != nil {
		doc = nil // deactivated
	}
	o.doc = doc
	if c := o.credential; c != nil && (doc == nil || !doc.Allows(did.PurposeAssertion, c.Method)) {
		o.credential = nil
	}
	if doc == nil || o.issuing == nil {
		return
	}
	for _, m := range doc.VerificationMethod {
		if bytes.Equal(m.PublicKey, o.issuing.Public()) && doc.Allows(did.PurposeAssertion, m.ID) {
			o.method, o.list = m.ID, nil
		}
	}
}

// A version is what the rule of succession reads of an entry of a log.
type version struct {
	VersionID  string `json:"versionId"`
	Parameters struct {
		UpdateKeys    []string `json:"updateKeys"`
		NextKeyHashes []string `json:"nextKeyHashes"`
	} `json:"parameters"`
}

// versions returns the entries of a verified log.
func versions(l *webvh.Log) ([]version, error) {
	var all []version
	for line := range bytes.Lines(l.Bytes()) {
		var v version
		if err := json.Unmarshal(line, &v); err != nil {
			return nil, err // the log was verified
		}
		all = append(all, v)
	}
	return all, nil
}

// recovers reports whether the next root key of the version before signed v.
func (v version) recovers(before version) bool {
	keys := v.Parameters.UpdateKeys
	return len(keys) == 1 && webvh.KeyHash(keys[0]) == at(before.Parameters.NextKeyHashes, 1)
}

// checkSuccession returns [ErrSuccession] if a version replaces the second of nextKeyHashes without its key. Logs that commit to fewer than
// two keys are not made by this package, and the rule does not hold for them.
func checkSuccession(l *webvh.Log) error {
	all, err := versions(l)
	if err != nil {
		return err
	}
	for i := 1; i < len(all); i++ {
		next := at(all[i-1].Parameters.NextKeyHashes, 1)
		if next != "" && !all[i].recovers(all[i-1]) && at(all[i].Parameters.NextKeyHashes, 1) != next {
			return fmt.Errorf("%w: version %d", ErrSuccession, i+1)
		}
	}
	return nil
}

// recoveredFrom reports whether the first version in which l and stored differ is signed by the next root key in l only.
func recoveredFrom(l, stored *webvh.Log) bool {
	a, err1 := versions(l)
	b, err2 := versions(stored)
	if err1 != nil || err2 != nil {
		return false
	}
	i := 0
	for i < min(len(a), len(b)) && a[i].VersionID == b[i].VersionID {
		i++
	}
	return i > 0 && i < min(len(a), len(b)) && a[i].recovers(a[i-1]) && !b[i].recovers(b[i-1])
}

func hashOf(k *keystore.Key) string { return webvh.KeyHash(k.DID().Multibase()) }

// hashes returns nextKeyHashes: of the root, and of the next root.
func hashes(root, next *keystore.Key) []string { return []string{hashOf(root), hashOf(next)} }

// firstDocument returns the document of a new organization.
func firstDocument(location string, issuing *keystore.Key, endpoints []string) func(did.DID) map[string]any {
	return func(id did.DID) map[string]any {
		doc := map[string]any{
			"@context":           []any{"https://www.w3.org/ns/did/v1", "https://w3id.org/security/multikey/v1"},
			"id":                 string(id),
			"alsoKnownAs":        []any{"did:web:" + location},
			"verificationMethod": []any{methodOf(id, 1, issuing.DID().Multibase())},
			"assertionMethod":    []any{string(id) + "#i1"},
		}
		setEndpoints(doc, endpoints)
		return doc
	}
}

// meshID is the id of the service that lists nodes.
const meshID = "#mesh"

// setEndpoints replaces the service #mesh of a document by one with these addresses, of which it takes [MaxEndpoints]. Without addresses the document
// has no such service.
func setEndpoints(doc map[string]any, endpoints []string) {
	services := slices.DeleteFunc(listOf(doc["service"]), func(v any) bool {
		s, _ := v.(map[string]any)
		return s["id"] == meshID
	})
	if len(endpoints) > 0 {
		var all []any
		for _, e := range endpoints[:min(len(endpoints), MaxEndpoints)] {
			all = append(all, e)
		}
		services = append(services, map[string]any{"id": meshID, "type": did.MeshService, "serviceEndpoint": all})
	}
	if doc["service"] = services; len(services) == 0 {
		delete(doc, "service")
	}
}

// Endpoints returns the addresses of nodes in the newest document.
func (o *Organization) Endpoints() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.doc == nil {
		return nil
	}
	return o.doc.Endpoints(did.MeshService)
}

// SetEndpoints replaces the addresses of nodes in the document, up to [MaxEndpoints] multiaddrs with /p2p; none removes the list. The error wraps [ErrNoRoot].
func (o *Organization) SetEndpoints(all []string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(all) > MaxEndpoints {
		return interact.Errorf(interact.Usage, "leave some out", "the document lists up to %d addresses, got %d", MaxEndpoints, len(all))
	}
	return o.extend(func(doc map[string]any) { setEndpoints(doc, all) })
}

// methodOf returns the verification method of the issuing key number n.
func methodOf(id did.DID, n int, multibase string) map[string]any {
	return map[string]any{"id": fmt.Sprintf("%s#i%d", id, n), "type": "Multikey", "controller": string(id), "publicKeyMultibase": multibase}
}

// NewIssuerKey returns the multikey "z6Mk…" of the issuing key of this node, and makes the key if there is none. The node becomes an issuer
// when the log lists the key; see [Organization.AddIssuer].
func (o *Organization) NewIssuerKey() (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.issuing == nil {
		k, err := keystore.Open(o.path(issuerFile))
		if err != nil {
			return "", err
		}
		o.issuing = k
		o.setLog(o.log)
	}
	return o.issuing.DID().Multibase(), nil
}

// AddIssuer adds the issuing key of a node, a multikey "z6Mk…", to the document, and returns its DID URL, such as "did:webvh:…#i2". A number
// is never used again. A key that is listed already is no error. The error wraps [ErrNoRoot].
func (o *Organization) AddIssuer(multibase string) (method string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	id, err := did.Parse("did:key:" + multibase)
	if err != nil {
		return "", interact.Errorf(interact.Usage, "copy the key from the node that becomes an issuer", "expected an issuing key, got %q: %s", interact.Excerpt(multibase, 100), err)
	}
	key, err := id.Key()
	if err != nil {
		return "", err
	}
	if o.doc != nil {
		for _, m := range o.doc.VerificationMethod {
			if bytes.Equal(m.PublicKey, key) {
				return m.ID, nil
			}
		}
		if len(o.doc.AssertionMethod) >= MaxIssuers {
			return "", interact.Errorf(interact.Usage, "remove one", "the organization has %d issuers, the most that are possible", MaxIssuers)
		}
	}
	n := lastIssuer(o.log) + 1
	method = fmt.Sprintf("%s#i%d", o.log.DID(), n)
	return method, o.extend(func(doc map[string]any) {
		doc["verificationMethod"] = append(listOf(doc["verificationMethod"]), methodOf(o.log.DID(), n, multibase))
		doc["assertionMethod"] = append(listOf(doc["assertionMethod"]), method)
	})
}

var issuerNumber = lazyregexp.New(`#i([0-9]{1,6})"`)

// lastIssuer returns the largest number of an issuing key in all versions.
func lastIssuer(l *webvh.Log) (last int) {
	for _, m := range issuerNumber().FindAllSubmatch(l.Bytes(), -1) {
		n, _ := strconv.Atoi(string(m[1])) // at most six digits
		last = max(last, n)
	}
	return last
}

func listOf(v any) []any {
	all, _ := v.([]any)
	return all
}

// RemoveIssuer removes an issuing key from the document: a DID URL, or "#i2". Its credentials and its status list are no longer valid. The
// last issuing key cannot be removed. The error wraps [ErrNoRoot].
func (o *Organization) RemoveIssuer(method string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	method = inDocument(o.log.DID(), method)
	switch {
	case o.doc == nil || !slices.Contains(o.doc.AssertionMethod, method):
		return interact.Errorf(interact.Usage, "list the issuers", "%q is not an issuer of the organization", interact.Excerpt(method, 200))
	case len(o.doc.AssertionMethod) == 1:
		return interact.Errorf(interact.Usage, "add another one first", "the organization has only this issuer")
	}
	return o.extend(func(doc map[string]any) {
		doc["verificationMethod"] = slices.DeleteFunc(listOf(doc["verificationMethod"]), func(v any) bool {
			m, _ := v.(map[string]any)
			return m["id"] == method
		})
		doc["assertionMethod"] = slices.DeleteFunc(listOf(doc["assertionMethod"]), func(v any) bool { return v == method })
	})
}

// Method returns the DID URL of an issuing key, which may be "#i2".
func (o *Organization) Method(name string) string { return inDocument(o.DID(), name) }

func inDocument(id did.DID, method string) string {
	if strings.HasPrefix(method, "#") {
		return string(id) + method
	}
	return method
}

// extend adds a version that the root signs, in which change has changed the document. o.mu is held.
func (o *Organization) extend(change func(doc map[string]any)) error {
	if o.root == nil {
		return ErrNoRoot
	}
	_, committed := o.log.UpdateKeys()
	return o.append(o.root, webvh.Update{NextKeyHashes: committed, Document: func(did.DID) map[string]any {
		doc := o.log.State()
		change(doc)
		return doc
	}})
}

// append adds a version that s signs. o.mu is held.
func (o *Organization) append(s did.Signer, u webvh.Update) error {
	u.Now, u.UpdateKeys = o.now(), []string{s.DID().Multibase()}
	if o.log.Deactivated() {
		return webvh.ErrDeactivated
	}
	if err := o.checkClock(u.Now); err != nil {
		return err
	}
	l, err := o.log.Append(s, u)
	if err != nil {
		return err
	}
	return o.storeLog(l)
}

// checkClock returns an error if the clock of this machine is before the newest version of the log: what it signs would have wrong times.
// o.mu is held.
func (o *Organization) checkClock(now time.Time) error {
	if skew := o.log.Updated().Sub(now); skew > webvh.Skew {
		return interact.Errorf(interact.ClockSkew, "set the clock of this machine", "the clock is %s before the newest version of the organization", skew.Round(time.Second))
	}
	return nil
}

// RotateRoot replaces the root key by a new one on this node. The old one signs the change, and the next root stays. The error wraps
// [ErrNoRoot].
func (o *Organization) RotateRoot() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.root == nil {
		return ErrNoRoot
	}
	root, err := o.newKey(newRootFile)
	if err != nil {
		return err
	}
	_, committed := o.log.UpdateKeys()
	return o.append(o.root, webvh.Update{NextKeyHashes: []string{hashOf(root), at(committed, 1)}})
}

// newKey makes a key in a file of the folder that holds keys before the log has them. o.mu is held.
func (o *Organization) newKey(name string) (*keystore.Key, error) {
	if err := os.RemoveAll(o.path(name)); err != nil {
		return nil, err
	}
	return keystore.Open(o.path(name))
}

// Recover replaces the root key and the next root key, signed by the next root key: text is the content of its recovery file, or nil if the key
// is in the folder (see [Organization.Auto]). The new next root key goes to the new file recoveryFile. The issuing keys stay: remove those
// that a thief added. After it, this node has the root key, whichever node had it before.
func (o *Organization) Recover(text []byte, recoveryFile string) (err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	next, err := o.nextRoot(text)
	if err != nil {
		return err
	}
	root, err := o.newKey(newRootFile)
	if err != nil {
		return err
	}
	following, err := keystore.New()
	if err != nil {
		return err
	}
	if err := following.Save(recoveryFile); err != nil {
		return recoveryError(err)
	}
	before := o.log.Len()
	if err := o.append(next, webvh.Update{NextKeyHashes: hashes(root, following)}); err != nil {
		if o.log.Len() == before {
			err = errors.Join(err, os.Remove(recoveryFile))
		}
		return err
	}
	return removeFile(o.path(nextFile))
}

// nextRoot returns the next root key from its file, or from the folder. o.mu is held.
func (o *Organization) nextRoot(text []byte) (*keystore.Key, error) {
	k := o.next
	if text != nil {
		var err error
		if k, err = o.parseKey(text); err != nil {
			return nil, interact.Errorf(interact.Usage, "use the recovery file of the organization", "the recovery file has no key: %s", err)
		}
	}
	_, committed := o.log.UpdateKeys()
	if k == nil || hashOf(k) != at(committed, 1) {
		return nil, interact.Errorf(interact.Usage, "use the newest recovery file of the organization", "the key is not the next root key of %s", domainOf(o.log.DID()))
	}
	return k, nil
}

// parseKey returns the key in a PEM text. o.mu is held.
func (o *Organization) parseKey(text []byte) (*keystore.Key, error) {
	if err := o.write(recoveredFile, text); err != nil {
		return nil, err
	}
	k, err := keystore.Open(o.path(recoveredFile))
	return k, errors.Join(err, os.Remove(o.path(recoveredFile)))
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// SaveRecovery moves the next root key of an organization that the node made by itself to a new file, and so ends [Organization.Auto].
func (o *Organization) SaveRecovery(file string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.next == nil {
		return interact.Errorf(interact.Usage, "", "the next root key is not on this node")
	}
	if err := o.next.Save(file); err != nil {
		return recoveryError(err)
	}
	if err := errors.Join(removeFile(o.path(nextFile)), atomicfile.SyncDir(o.dir)); err != nil {
		return err
	}
	o.next = nil
	return nil
}

// ExportRoot writes the root key to w, PKCS#8 in PEM, or what encrypt returns for it; nil encrypts nothing. The key stays on the node, see
// [Organization.RemoveRoot]. The error wraps [ErrNoRoot].
func (o *Organization) ExportRoot(w io.Writer, encrypt func([]byte) ([]byte, error)) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.root == nil {
		return ErrNoRoot
	}
	text, err := os.ReadFile(o.path(rootFile))
	if err != nil {
		return err
	}
	if encrypt != nil {
		if text, err = encrypt(text); err != nil {
			return err
		}
	}
	_, err = w.Write(text)
	return err
}

// RemoveRoot deletes the root key from this node. The caller has exported it.
func (o *Organization) RemoveRoot() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := errors.Join(removeFile(o.path(rootFile)), atomicfile.SyncDir(o.dir)); err != nil {
		return err
	}
	o.root = nil
	return nil
}

// ImportRoot stores the root key on this node, from the text that ExportRoot wrote without encryption.
func (o *Organization) ImportRoot(text []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	k, err := o.parseKey(text)
	if err != nil {
		return interact.Errorf(interact.Usage, "use the exported file", "the file has no key: %s", err)
	}
	if _, committed := o.log.UpdateKeys(); hashOf(k) != at(committed, 0) {
		return interact.Errorf(interact.Usage, "use the newest exported file", "the key is not the root key of %s", domainOf(o.log.DID()))
	}
	if err := o.write(rootFile, text); err != nil {
		return err
	}
	o.root = k
	return nil
}

// Deactivate ends the organization: its log accepts no further version, and its credentials are no longer valid. The error wraps [ErrNoRoot].
func (o *Organization) Deactivate() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.root == nil {
		return ErrNoRoot
	}
	_, committed := o.log.UpdateKeys()
	return o.append(o.root, webvh.Update{NextKeyHashes: committed, Deactivate: true})
}
