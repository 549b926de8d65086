package audit

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lmosd/lmosd/did"
)

// Limits of the texts of a line, in bytes.
const (
	maxText   = 256
	maxDetail = 1 << 10
	maxLine   = 64 << 10
)

// Events of the log itself. Those of changes are ChangeTrust and others; decisions have none.
const (
	EventFile       = "file"       // the first line of a file
	EventCheckpoint = "checkpoint" // a signature of all lines before it
	EventDenials    = "denials"    // the number of denials beyond the limit of lines, of a node or of all nodes
	EventLost       = "lost"       // the number of decisions or changes that were not recorded
	EventRecovered  = "recovered"  // an incomplete line was moved to another file
)

// A Line is one line of a file, a JSON object with the members in this order. Empty members are missing.
type Line struct {
	// N is the number of the line in its chain, from 1.
	N uint64 `json:"n"`
	// Time is UTC in milliseconds: of the decision, the first one if there are several, or of the change.
	Time time.Time `json:"time"`
	// Prev is the base64url of the SHA-256 of the line before without its line end; empty in the first line of a chain.
	Prev string `json:"prev"`
	// Event is empty for a decision, else ChangeTrust, EventFile or another.
	Event  string `json:"event,omitempty"`
	Detail string `json:"detail,omitempty"`

	// Who is the id of the caller ([did.Principal.ID]); in a line of EventDenials the node, or empty for several nodes.
	Who     string   `json:"who,omitempty"`
	Org     did.DID  `json:"org,omitempty"`
	Roles   []string `json:"roles,omitempty"`
	Via     did.Via  `json:"via,omitempty"`
	Op      string   `json:"op,omitempty"`
	Thing   string   `json:"thing,omitempty"`
	Name    string   `json:"name,omitempty"`
	Verdict string   `json:"verdict,omitempty"` // allow or deny
	Rule    string   `json:"rule,omitempty"`
	Code    string   `json:"code,omitempty"`
	Trace   string   `json:"trace,omitempty"` // of the first
	// Times is the number of decisions; 0 in other lines. Until is the time of the last one in a line of EventDenials.
	Times uint64    `json:"times,omitempty"`
	Until time.Time `json:"until,omitzero"`

	// Chain is the name of the chain, audit or denied. File is the number of the file and First that of the oldest one that is kept.
	// Broken is the place of a damage at which the chain was found when the file was started.
	Chain  string `json:"chain,omitempty"`
	File   int    `json:"file,omitempty"`
	First  int    `json:"first,omitempty"`
	Broken string `json:"broken,omitempty"`
	// Denied is the head of the other chain in a checkpoint of the chain audit.
	Denied *Head `json:"denied,omitempty"`
	// Rotation is the statement by which the node replaces its key, in a line of ChangeKey ([rotation.Statement]).
	Rotation []byte `json:"rotation,omitempty"`
	// By is the signer of a checkpoint. Sig is the base64url of the signature of "lmos-audit-v1:" and the line up to this member.
	By  did.DID `json:"by,omitempty"`
	Sig string  `json:"sig,omitempty"`

	chain, hash string // set by a Reader
}

// ID returns the chain and the number of a line that a [Reader] has returned: "audit/12" or "denied/7".
func (l *Line) ID() string { return l.chain + "/" + strconv.FormatUint(l.N, 10) }

// Hash returns the base64url of the SHA-256 of a line that a [Reader] has returned.
func (l *Line) Hash() string { return l.hash }

// The verdicts of a decision.
const (
	allow = "allow"
	deny  = "deny"
)

// A Head identifies a line of a chain, and with it all lines before.
type Head struct {
	N uint64 `json:"n"`
	// Hash is the base64url of the SHA-256 of the line.
	Hash string `json:"hash"`
}

// b64 is the encoding of hashes and signatures.
var b64 = base64.RawURLEncoding.Strict()

// hashOf returns the hash of a line without its end.
func hashOf(line []byte) string {
	sum := sha256.Sum256(line)
	return b64.EncodeToString(sum[:])
}

// ParseLine parses a line of at most 64 KiB without its end. It checks the form of its members, not the chain.
func ParseLine(b []byte) (Line, error) {
	var l Line
	if len(b) > maxLine {
		return l, fmt.Errorf("the line has %d bytes, %d at most", len(b), maxLine)
	}
	if err := json.Unmarshal(b, &l); err != nil {
		return l, err
	}
	switch {
	case l.N == 0 || l.Time.IsZero():
		return l, errors.New("the line has no number or time")
	case l.Prev != "" && !isHash(l.Prev) || l.Prev == "" && l.N != 1:
		return l, errors.New("prev is not a hash")
	case l.Denied != nil && !isHash(l.Denied.Hash):
		return l, errors.New("the head of the denials is not a hash")
	case l.Event == EventFile && (l.File < 1 || l.First < 1 || l.First > l.File):
		return l, errors.New("the numbers of the files are not valid")
	}
	return l, nil
}

func isHash(text string) bool {
	b, err := b64.DecodeString(text)
	return err == nil && len(b) == sha256.Size
}

// appendTo appends the line to b, without a line end.
func (l *Line) appendTo(b []byte) ([]byte, error) {
	w := bytes.NewBuffer(b)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if err := e.Encode(l); err != nil {
		return b, err
	}
	return w.Bytes()[:w.Len()-1], nil
}

// sigMember separates the signed part of a checkpoint from its signature, which is the last member.
const sigMember = `,"sig":"`

// sign signs the line as a checkpoint: it sets Sig.
func (l *Line) sign(s did.Signer) error {
	l.By, l.Sig = s.DID(), ""
	b, err := l.appendTo(nil)
	if err != nil {
		return err
	}
	sig, err := s.Sign(did.PurposeAudit, b[:len(b)-1])
	if err != nil {
		return err
	}
	l.Sig = b64.EncodeToString(sig)
	return nil
}

// checkSignature checks the signature of a checkpoint. Any key may have signed it: the caller compares By.
func checkSignature(line []byte, by did.DID) error {
	i := bytes.LastIndex(line, []byte(sigMember))
	if i < 0 || !bytes.HasSuffix(line, []byte(`"}`)) || len(line) < i+len(sigMember)+2 {
		return errors.New("the checkpoint has no signature at its end")
	}
	sig, err := b64.DecodeString(string(line[i+len(sigMember) : len(line)-2]))
	if err != nil {
		return errors.New("the signature of the checkpoint is not base64url")
	}
	key, err := by.Key()
	if err != nil {
		return err
	}
	if !ed25519.Verify(key, append([]byte(did.PurposeAudit), line[:i]...), sig) {
		return fmt.Errorf("the signature of the checkpoint does not verify with the key of %s", by.Short())
	}
	return nil
}

// shorten returns text with at most most bytes, and valid UTF-8.
func shorten(text string, most int) string {
	if len(text) <= most && utf8.ValidString(text) {
		return text
	}
	if len(text) > most {
		end := most - len("…")
		for end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end] + "…"
	}
	return strings.ToValidUTF8(text, "�")
}
