package rotation

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/atomicfile"
)

// fileName is the name of the file in the data directory.
const fileName = "rotation.json"

// maxFile limits the file: a statement and a credential.
const maxFile = 128 << 10

// A Pending is a replacement that was requested and is not completed. It is stored in the data directory. It does not change: several parts of a
// node have the one that was stored when the node started.
type Pending struct {
	*Statement
	// Raw is the encoded statement.
	Raw []byte
	// Confirmed is true once an issuer, or without an organization the operator, has consented: from then on, the node goes on with the new key
	// only.
	Confirmed bool
	// Credential is that of the new key, from the issuer.
	Credential []byte

	path string
}

// stored is the content of the file.
type stored struct {
	Format     int    `json:"format"` // 1
	Statement  []byte `json:"statement"`
	Confirmed  bool   `json:"confirmed,omitempty"`
	Credential []byte `json:"credential,omitempty"`
}

// Request stores a replacement that no issuer has confirmed yet in a data directory. It takes the place of an earlier one.
func Request(dir string, raw []byte) (*Pending, error) {
	s, err := Parse(raw)
	if err != nil {
		return nil, err
	}
	p := &Pending{Statement: s, Raw: raw, path: filepath.Join(dir, fileName)}
	return p, p.store()
}

// Load reads the replacement in a data directory. It returns nil if there is none.
func Load(dir string) (*Pending, error) {
	if dir == "" {
		return nil, nil
	}
	path := filepath.Join(dir, fileName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p, err := decode(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	p.path = path
	return p, nil
}

// decode reads the content of the file.
func decode(text []byte) (*Pending, error) {
	var f stored
	if len(text) > maxFile {
		return nil, fmt.Errorf("it has more than %d bytes", maxFile)
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, err
	}
	if f.Format != 1 {
		return nil, fmt.Errorf("the format %d is unknown", f.Format)
	}
	s, err := Parse(f.Statement)
	if err != nil {
		return nil, err
	}
	return &Pending{Statement: s, Raw: f.Statement, Confirmed: f.Confirmed, Credential: f.Credential}, nil
}

func (p *Pending) store() error {
	text, err := json.Marshal(stored{1, p.Raw, p.Confirmed, p.Credential})
	if err != nil {
		return err
	}
	return atomicfile.Write(p.path, append(text, '\n'), 0o600)
}

// Confirm stores the replacement as confirmed, with the credential of the new key, and returns it; the credential is nil without an organization.
func (p *Pending) Confirm(credential []byte) (*Pending, error) {
	confirmed := *p
	confirmed.Confirmed, confirmed.Credential = true, credential
	return &confirmed, confirmed.store()
}

// Done deletes the replacement, which is completed.
func (p *Pending) Done() error { return os.Remove(p.path) }

// Other returns the key that the node with the key self has besides: the next one or the one before. It is empty if p is nil or about other
// keys.
func (p *Pending) Other(self did.DID) did.DID {
	switch {
	case p == nil:
	case p.From == self:
		return p.To
	case p.To == self:
		return p.From
	}
	return ""
}

// Follows reports whether the node with the key self has replaced its key by p, and an issuer is still to complete that.
func (p *Pending) Follows(self did.DID) bool { return p != nil && p.Confirmed && p.To == self }
