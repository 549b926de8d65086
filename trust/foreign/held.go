package foreign

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/atomicfile"
)

// MaxHeld limits the credentials that a node holds.
const MaxHeld = 32

// A Held is a credential whose subject is this node, as it is stored.
type Held struct {
	Credential string    `json:"credential"` // as its issuer wrote it
	Issuer     did.DID   `json:"issuer"`
	Types      []string  `json:"types"`
	Until      time.Time `json:"until"`
	// To are the nodes to which it is shown; empty: members of the own organization and of partners.
	To []did.DID `json:"to,omitempty"`
}

// Hash returns the name of the credential.
func (h *Held) Hash() string { return Hash([]byte(h.Credential)) }

// IsFor reports whether the credential is shown to a node.
func (h *Held) IsFor(node did.DID, relation did.Relation) bool {
	if len(h.To) == 0 {
		return relation >= did.Partner
	}
	return slices.Contains(h.To, node)
}

// A file has the credentials of a node.
type file struct {
	Version     int     `json:"version"`
	Credentials []*Held `json:"credentials"`
}

const (
	version = 1
	maxFile = 2 * MaxHeld * MaxCredential
)

// Read reads the credentials in a file; a missing file has none.
func Read(path string) ([]*Held, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var f file
	if len(text) > maxFile {
		return nil, fmt.Errorf("larger than %d bytes", maxFile)
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, err
	}
	if f.Version != version {
		return nil, fmt.Errorf("expected version %d, got %d", version, f.Version)
	}
	if slices.Contains(f.Credentials, nil) {
		return nil, errors.New("a credential is null")
	}
	return f.Credentials, nil
}

// Write stores credentials durably.
func Write(path string, all []*Held) error {
	text, err := json.MarshalIndent(file{version, all}, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(text, '\n'), 0o600)
}

// maxServed limits the credentials of one response.
const maxServed = 16

// Served returns the credentials in the response of a service: one, an array of them, or those of a presentation. It returns none for other content.
func Served(raw []byte) (all []json.RawMessage) {
	var one struct {
		Credentials json.RawMessage `json:"verifiableCredential"`
	}
	if json.Unmarshal(raw, &one) == nil && one.Credentials != nil {
		raw = one.Credentials
	}
	if json.Unmarshal(raw, &all) != nil && json.Valid(raw) {
		all = []json.RawMessage{raw}
	}
	return all[:min(len(all), maxServed)]
}

// With returns all with a credential, in place of the same one. Expired ones are left out.
func With(all []*Held, h *Held, now time.Time) ([]*Held, error) {
	all = slices.DeleteFunc(slices.Clone(all), func(old *Held) bool { return old.Credential == h.Credential || now.After(old.Until) })
	if len(all) >= MaxHeld {
		return nil, interact.Errorf(interact.Usage, "remove one first", "this node holds %d credentials, the most that are possible", MaxHeld)
	}
	return append(all, h), nil
}
