// Package invitation encodes, signs and verifies invitations, which make a node a member of an organization or of a group, or two organizations
// partners, and stores those that a node issued.
//
// An invitation is one string: "lmos-invite:" and the base64url of a deterministic CBOR map, signed by an issuing key of the organization, or by an admin of the group. Its
// secret proves that the holder received it; the issuer stores the hash of the secret only. The domain in the DID of the organization is a
// claim: the log with the SCID proves the organization, and people compare [CheckWords].
package invitation

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/cbor"
)

// Prefix is the beginning of each invitation.
const Prefix = "lmos-invite:"

// Limits of an invitation.
const (
	MaxText      = 4096 // characters, without white space
	MaxAddresses = 3
	MaxRoles     = 8
	MaxLife      = 30 * 24 * time.Hour
	Life         = 24 * time.Hour // if the issuer names none
	maxNetwork   = 64             // bytes
	maxDID       = 512            // bytes
	maxAddress   = 512            // bytes
	maxHead      = 64             // bytes
	secretSize   = 16
)

// Skew is the permitted difference of the clocks of issuer and reader.
const Skew = 5 * time.Minute

// A Kind is what an invitation is for.
type Kind uint8

// The kinds.
const (
	Node    Kind = 1 // the reader's node becomes a member of the organization
	Partner Kind = 2 // the reader's organization becomes a partner
	Group   Kind = 3 // the reader's node becomes a member of the group
)

// String returns "node", "partner" or "group".
func (k Kind) String() string {
	switch k {
	case Node:
		return "node"
	case Partner:
		return "partner"
	case Group:
		return "group"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// An Invitation is the content of the string.
type Invitation struct {
	Network string // the name of the mesh
	// Organization is a did:webvh; for a group, the did:key of the admin that invites.
	Organization did.DID
	// For is the only DID that may use the invitation: of a node, or for partners of the organization. Empty: any.
	For  did.DID
	Kind Kind
	// Roles are those of the new member, or those of the partner's roles that count. At most MaxRoles.
	Roles     []string
	Secret    [secretSize]byte
	Expires   time.Time // UTC, whole seconds
	Addresses []string  // 1 to MaxAddresses multiaddrs of issuer nodes, which end in /p2p/ID
	// Group is the id of the group, and Head the newest entry of its log: the log that the reader receives has it. Empty for other kinds.
	Group, Head string

	signed []byte // the signed bytes, without the domain
	sig    []byte
}

// wire is the CBOR map.
type wire struct {
	Version      uint64   `cbor:"0,keyasint"` // 1
	Network      string   `cbor:"1,keyasint"`
	Organization string   `cbor:"2,keyasint"`
	For          string   `cbor:"3,keyasint,omitempty"`
	Kind         uint8    `cbor:"4,keyasint"`
	Roles        []string `cbor:"5,keyasint,omitempty"`
	Secret       []byte   `cbor:"6,keyasint"`
	Expires      int64    `cbor:"7,keyasint"` // Unix seconds
	Addresses    [][]byte `cbor:"8,keyasint"`
	Signature    []byte   `cbor:"9,keyasint,omitempty"`
	Group        string   `cbor:"10,keyasint,omitempty"`
	Head         string   `cbor:"11,keyasint,omitempty"`
}

// New returns a signed invitation and its string. It fills in Secret, and Expires if it is zero; the life is at most [MaxLife]. s is an
// issuing key of the organization.
func New(i Invitation, s did.Signer, now time.Time) (*Invitation, string, error) {
	if i.Expires.IsZero() {
		i.Expires = now.Add(Life)
	}
	i.Expires = i.Expires.UTC().Truncate(time.Second)
	if life := i.Expires.Sub(now); life <= 0 || life > MaxLife {
		return nil, "", interact.Errorf(interact.Usage, "", "an invitation is valid for at most %d days, got %s", int(MaxLife.Hours()/24), life.Round(time.Second))
	}
	_, _ = rand.Read(i.Secret[:]) // it never fails
	w := wire{Version: 1, Network: i.Network, Organization: string(i.Organization), For: string(i.For), Kind: uint8(i.Kind), Roles: i.Roles, Secret: i.Secret[:], Expires: i.Expires.Unix(),
		Group: i.Group, Head: i.Head}
	for _, a := range i.Addresses {
		m, err := multiaddr.NewMultiaddr(a)
		if err != nil {
			return nil, "", interact.Errorf(interact.Usage, "", "expected a multiaddr, got %q: %s", interact.Excerpt(a, 200), err)
		}
		w.Addresses = append(w.Addresses, m.Bytes())
	}
	signed, err := cbor.Marshal(w)
	if err != nil {
		return nil, "", err
	}
	if w.Signature, err = s.Sign(did.PurposeInvitation, signed); err != nil {
		return nil, "", err
	}
	raw, err := cbor.Marshal(w)
	if err != nil {
		return nil, "", err
	}
	out, err := decode(raw) // what readers reject is not issued
	text := Prefix + base64.RawURLEncoding.EncodeToString(raw)
	if err == nil && len(text) > MaxText {
		err = fmt.Errorf("it has more than %d characters", MaxText)
	}
	if err != nil {
		return nil, "", interact.Errorf(interact.Usage, "", "the invitation cannot be issued: %s", err)
	}
	return out, text, nil
}

// invalid returns an error with the code [interact.InvalidInvite].
func invalid(hint, format string, args ...any) error {
	return interact.Errorf(interact.InvalidInvite, hint, format, args...)
}

const askAgain = "request a new invitation"

// Parse reads an invitation. It ignores white space, which terminals and mail programs add. It does not check the signature; see
// [Invitation.Verify]. The error has the code [interact.InvalidInvite].
func Parse(text string) (*Invitation, error) {
	text = strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, text[:min(len(text), 4*MaxText)])
	body, ok := strings.CutPrefix(text, Prefix)
	if !ok {
		return nil, invalid("copy the whole string, from "+Prefix+" to its end", "this is not an invitation: it does not begin with %s", Prefix)
	}
	if len(text) > MaxText {
		return nil, invalid("copy the string without the text behind it", "this is not an invitation: it is longer than %d characters", MaxText)
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil {
		return nil, invalid("copy the whole string", "the invitation is incomplete or altered: not base64url")
	}
	i, err := decode(raw)
	if err != nil {
		return nil, invalid("copy the whole string", "the invitation is incomplete or altered: %s", err)
	}
	return i, nil
}

// decode reads the CBOR map.
func decode(raw []byte) (*Invitation, error) {
	var w wire
	var v struct {
		Version uint64 `cbor:"0,keyasint"`
	}
	if err := cbor.Peek(raw, &v); err == nil && v.Version > 1 {
		return nil, fmt.Errorf("it has the version %d, which this program does not support", v.Version)
	}
	if err := cbor.Unmarshal(raw, &w); err != nil {
		return nil, err
	}
	if again, err := cbor.Marshal(w); err != nil || !bytes.Equal(again, raw) {
		return nil, errors.New("it is not deterministic CBOR")
	}
	i := &Invitation{Network: w.Network, Organization: did.DID(w.Organization), For: did.DID(w.For), Kind: Kind(w.Kind), Roles: w.Roles,
		Expires: time.Unix(w.Expires, 0).UTC(), Group: w.Group, Head: w.Head, sig: w.Signature}
	if err := i.check(w); err != nil {
		return nil, err
	}
	copy(i.Secret[:], w.Secret)
	for _, b := range w.Addresses {
		a, err := address(b)
		if err != nil {
			return nil, err
		}
		i.Addresses = append(i.Addresses, a)
	}
	w.Signature = nil
	var err error
	i.signed, err = cbor.Marshal(w)
	return i, err
}

// check checks the members of a map.
func (i *Invitation) check(w wire) error {
	switch {
	case w.Version != 1:
		return fmt.Errorf("the version is %d, expected 1", w.Version)
	case w.Network == "" || len(w.Network) > maxNetwork || interact.Readable(w.Network) != w.Network:
		return errors.New("the name of the network is invalid")
	case i.Kind < Node || i.Kind > Group:
		return fmt.Errorf("the kind is %d", i.Kind)
	case len(w.Secret) != secretSize:
		return fmt.Errorf("the secret has %d bytes, expected %d", len(w.Secret), secretSize)
	case len(w.Signature) != ed25519.SignatureSize:
		return fmt.Errorf("the signature has %d bytes, expected %d", len(w.Signature), ed25519.SignatureSize)
	case w.Expires <= 0 || w.Expires > 1<<40:
		return errors.New("the time of expiry is invalid")
	case len(w.Addresses) == 0 || len(w.Addresses) > MaxAddresses:
		return fmt.Errorf("it has %d addresses, expected 1 to %d", len(w.Addresses), MaxAddresses)
	case (i.Kind == Group) != did.IsHash(w.Group) || i.Kind != Group && w.Group+w.Head != "" || len(w.Head) > maxHead:
		return errors.New("the id of the group is invalid")
	case len(w.Roles) > MaxRoles:
		return fmt.Errorf("it has %d roles, more than %d", len(w.Roles), MaxRoles)
	}
	for n, r := range w.Roles {
		if !vc.ValidRole(r) || slices.Contains(w.Roles[:n], r) {
			return fmt.Errorf("the role %.100q is invalid or repeated", r)
		}
	}
	return i.checkDIDs(w)
}

func (i *Invitation) checkDIDs(w wire) error {
	if len(w.Organization) > maxDID || len(w.For) > maxDID {
		return errors.New("a DID is too long")
	}
	switch d, err := did.Parse(w.Organization); {
	case i.Kind == Group && (err != nil || d.Method() != "key"):
		return errors.New("the admin of the group is not a did:key")
	case i.Kind != Group && (err != nil || webvh.SCID(d) == ""):
		return errors.New("the organization is not a did:webvh")
	}
	if w.For == "" {
		return nil
	}
	d, err := did.Parse(w.For)
	if method := map[Kind]string{Node: "key", Partner: "webvh", Group: "key"}[i.Kind]; err != nil || d.Method() != method {
		return fmt.Errorf("the reader is not a did:%s", method)
	}
	return nil
}

// address reads a binary multiaddr that ends in the PeerID of an Ed25519 key.
func address(b []byte) (string, error) {
	if len(b) > maxAddress {
		return "", fmt.Errorf("an address has %d bytes, more than %d", len(b), maxAddress)
	}
	m, err := multiaddr.NewMultiaddrBytes(b)
	if err != nil {
		return "", fmt.Errorf("an address is not a multiaddr: %w", err)
	}
	if _, err := peerOf(m); err != nil {
		return "", err
	}
	return m.String(), nil
}

// peerOf returns the DID of the node at the end of an address.
func peerOf(m multiaddr.Multiaddr) (did.DID, error) {
	if len(m) < 2 || m[len(m)-1].Protocol().Code != multiaddr.P_P2P {
		return "", fmt.Errorf("the address %.200s does not end in /p2p/ID", m)
	}
	return did.FromPeer(m[len(m)-1].RawValue())
}

// Nodes returns the DIDs of the nodes in Addresses, each once.
func (i *Invitation) Nodes() (all []did.DID) {
	for _, a := range i.Addresses {
		m, err := multiaddr.NewMultiaddr(a)
		if err != nil {
			continue
		}
		if d, err := peerOf(m); err == nil && !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	return all
}

// VerifyAdmin verifies the signature of an invitation to a group by the key of the admin that it names. The error has the code
// [interact.InvalidInvite].
func (i *Invitation) VerifyAdmin() error {
	key, err := i.Organization.Key()
	if err != nil || i.Kind != Group || !ed25519.Verify(key, append([]byte(did.PurposeInvitation), i.signed...), i.sig) {
		return invalid("request a new invitation from an admin of the group", "the invitation was altered")
	}
	return nil
}

// SCID returns the identifier of the organization.
func (i *Invitation) SCID() string { return webvh.SCID(i.Organization) }

// ID returns the SHA-256 of the secret in hex, 64 characters. It names the invitation in logs and lists.
func (i *Invitation) ID() string { return idOf(i.Secret) }

func idOf(secret [secretSize]byte) string {
	sum := sha256.Sum256(secret[:])
	return hex.EncodeToString(sum[:])
}

// Check checks that the reader can use the invitation: it is for its network, not expired at now, and for one of the DIDs of the reader, its
// node and its organization. The error has the code [interact.InvalidInvite] and names the reason.
func (i *Invitation) Check(network string, now time.Time, reader ...did.DID) error {
	switch {
	case i.Network != network:
		return invalid("start the node in that network, or request an invitation for this one", "the invitation is for the network %q, this node is in %q", i.Network, network)
	case now.After(i.Expires.Add(Skew)):
		return expired(i.Expires, now)
	case i.For != "" && !slices.Contains(reader, i.For):
		return invalid("use it there, or request one for this node", "the invitation is for another node: %s", i.For.Short())
	}
	return nil
}

func expired(at, now time.Time) error {
	return invalid(askAgain, "the invitation expired on %s, %s ago", at.Format(time.RFC3339), now.Sub(at).Round(time.Second))
}

// Verify verifies the signature by an issuing key in the newest document of the organization. The error has the code
// [interact.InvalidInvite].
func (i *Invitation) Verify(l *webvh.Log) error {
	if l.SCID() != i.SCID() {
		return invalid("", "the invitation is of the organization %s, the log of %s", i.SCID(), l.SCID())
	}
	doc, err := l.Document()
	if err != nil {
		return &interact.Error{Code: interact.InvalidInvite, Title: "the organization of the invitation has no valid document", Err: err}
	}
	input := append([]byte(did.PurposeInvitation), i.signed...)
	for _, m := range doc.VerificationMethod {
		if doc.Allows(did.PurposeAssertion, m.ID) && m.KeyType == did.Ed25519 && len(m.PublicKey) == ed25519.PublicKeySize && ed25519.Verify(m.PublicKey, input, i.sig) {
			return nil
		}
	}
	return invalid(askAgain, "the invitation was altered, or its issuer is no longer an issuer of the organization")
}
