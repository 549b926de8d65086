package invitation

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/atomicfile"
)

// Limits of a [Store].
const (
	MaxUses   = 1000
	maxIssued = 1000                // invitations
	keepFor   = 30 * 24 * time.Hour // after the expiry, so that a late reader gets the reason
	maxStore  = 64 << 20            // bytes of the file
)

// An Issued is an invitation that this node issued. The store does not have its secret.
type Issued struct {
	ID       string       `json:"id"` // SHA-256 of the secret in hex
	Kind     Kind         `json:"kind"`
	Roles    []string     `json:"roles,omitempty"`
	For      did.DID      `json:"for,omitempty"`
	Group    string       `json:"group,omitempty"` // of an invitation to a group
	Expires  time.Time    `json:"expires"`
	Uses     int          `json:"uses"` // that are left
	Redeemed []Redemption `json:"redeemed,omitempty"`
}

// A Redemption is one use of an invitation.
type Redemption struct {
	By did.DID   `json:"by"`
	At time.Time `json:"at"`
}

// A Store has the invitations that a node issued, in one file with mode 0600. Every change is durable before the method returns. It is safe
// for concurrent use; only one process may use the file.
type Store struct {
	path string
	now  func() time.Time

	mu  sync.Mutex
	all []Issued // protected by mu; oldest first
}

// storeFile is the content of the file.
type storeFile struct {
	Format      int      `json:"format"` // 1
	Invitations []Issued `json:"invitations"`
}

// OpenStore opens the store in a file. A missing file is an empty store. A nil now is [time.Now].
func OpenStore(path string, now func() time.Time) (*Store, error) {
	if now == nil {
		now = time.Now
	}
	s := &Store{path: path, now: now}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("issued invitations: %w", err)
	}
	if s.all, err = parseStore(raw); err != nil {
		return nil, &interact.Error{Code: interact.StoreCorrupt, Title: "the issued invitations cannot be read", Hint: "delete the file: invitations that were not used are lost",
			Err: fmt.Errorf("%s: %w", path, err)}
	}
	return s, nil
}

// parseStore reads the file of a store.
func parseStore(raw []byte) ([]Issued, error) {
	if len(raw) > maxStore {
		return nil, fmt.Errorf("it has more than %d bytes", maxStore)
	}
	var f storeFile
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, err
	}
	if f.Format != 1 {
		return nil, fmt.Errorf("the format %d is unknown", f.Format)
	}
	for n, i := range f.Invitations {
		id, err := hex.DecodeString(i.ID)
		badRole := func(r string) bool { return !vc.ValidRole(r) }
		if err != nil || len(id) != 32 || i.Kind != Node && i.Kind != Partner || i.Uses < 0 || i.Uses == 0 && len(i.Redeemed) == 0 || slices.ContainsFunc(i.Roles, badRole) {
			return nil, fmt.Errorf("invitation %d is invalid", n+1)
		}
	}
	return f.Invitations, nil
}

// write makes all durable and uses it. s.mu is held.
func (s *Store) write(all []Issued) error {
	raw, err := json.Marshal(storeFile{1, all})
	if err != nil {
		return err
	}
	if err := atomicfile.Write(s.path, raw, 0o600); err != nil {
		return fmt.Errorf("issued invitations: %w", err)
	}
	s.all = all
	return nil
}

// Add stores an invitation that this node issued and that can be used this many times, 1 to [MaxUses]. An invitation for one DID can be used
// once.
func (s *Store) Add(i *Invitation, uses int) error {
	if uses < 1 || uses > MaxUses || i.For != "" && uses != 1 {
		return interact.Errorf(interact.Usage, "", "an invitation has 1 to %d uses, and one for a certain DID 1; got %d", MaxUses, uses)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	all := slices.DeleteFunc(slices.Clone(s.all), func(i Issued) bool { return now.After(i.Expires.Add(keepFor)) })
	if len(all) >= maxIssued {
		return interact.Errorf(interact.Overloaded, "revoke those that are not needed", "this node has issued %d invitations, the most that are possible", maxIssued)
	}
	return s.write(append(all, Issued{ID: i.ID(), Kind: i.Kind, Roles: slices.Clone(i.Roles), For: i.For, Group: i.Group, Expires: i.Expires, Uses: uses}))
}

// List returns the invitations, the oldest first. Those that were used or expired stay for 30 days after their expiry.
func (s *Store) List() []Issued {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Issued, len(s.all))
	for n, i := range s.all {
		all[n] = i.clone()
	}
	return all
}

func (i Issued) clone() Issued {
	i.Roles, i.Redeemed = slices.Clone(i.Roles), slices.Clone(i.Redeemed)
	return i
}

// Redeem uses the invitation with the secret, of the kind that the request is for, once for the node or organization by, which has proven
// that DID. It is atomic, and durable before
// it returns. The same DID may redeem it again until it expires, without another use, because the first response may be lost. The error
// has the code [interact.InvalidInvite] and names the reason.
func (s *Store) Redeem(secret [secretSize]byte, kind Kind, by did.DID) (Issued, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, now := idOf(secret), s.now()
	n := slices.IndexFunc(s.all, func(i Issued) bool { return i.ID == id })
	if n < 0 {
		return Issued{}, invalid(askAgain, "the issuer does not know the invitation, or revoked it")
	}
	i := s.all[n].clone()
	switch {
	case now.After(i.Expires.Add(Skew)):
		return Issued{}, expired(i.Expires, now)
	case i.Kind != kind:
		return Issued{}, invalid("use it for that", "the invitation is for a %s, not for a %s", i.Kind, kind)
	case i.For != "" && i.For != by:
		return Issued{}, invalid("use it there, or request one for this node", "the invitation is for another node: %s", i.For.Short())
	case slices.ContainsFunc(i.Redeemed, func(r Redemption) bool { return r.By == by }):
		return i, nil
	case i.Uses == 0:
		last := i.Redeemed[len(i.Redeemed)-1]
		return Issued{}, invalid(askAgain, "the invitation was used already, on %s", last.At.Format(time.RFC3339))
	}
	i.Uses--
	i.Redeemed = append(i.Redeemed, Redemption{by, now.UTC().Truncate(time.Second)})
	all := slices.Clone(s.all)
	all[n] = i
	if err := s.write(all); err != nil {
		return Issued{}, err
	}
	return i.clone(), nil
}

// Clear deletes all invitations: the node is not in the organization any more that they are of.
func (s *Store) Clear() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		return nil
	}
	return s.write(nil)
}

// Revoke deletes an invitation: its id, or the beginning of one, at least 6 characters. It reports whether there was exactly one.
func (s *Store) Revoke(id string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	matches := func(i Issued) bool { return len(id) >= 6 && len(i.ID) >= len(id) && i.ID[:len(id)] == id }
	rest := slices.DeleteFunc(slices.Clone(s.all), matches)
	if len(rest) != len(s.all)-1 {
		return false, nil
	}
	return true, s.write(rest)
}
