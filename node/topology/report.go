package topology

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/cbor"
)

// Limits of a report.
const (
	MaxLinks = 256 // connections

	maxReport = 60 << 10 // bytes: the frame has 64 KiB
	maxText   = 64       // bytes of a name, and of a version
	maxWord   = 32       // bytes of the name of a transport
	maxRoles  = 8
	maxSkew   = 5 * time.Minute // between clocks
	maxRTT    = 10 * time.Minute

	reportVersion = 1
	reportLife    = time.Second // of the encoded report: requests cost one list of peers in a second
)

// A wireReport is the answer to a request for the connections of a node: deterministic CBOR.
type wireReport struct {
	Version uint8      `cbor:"0,keyasint"`
	Name    string     `cbor:"1,keyasint,omitempty"`
	Program string     `cbor:"2,keyasint,omitempty"` // its version
	Roles   []string   `cbor:"3,keyasint,omitempty"`
	Links   []wireLink `cbor:"4,keyasint,omitempty"`
	More    bool       `cbor:"5,keyasint,omitempty"` // the node has more connections
}

// A wireLink is a connection of the node that answers.
type wireLink struct {
	To        string `cbor:"0,keyasint"`
	Transport string `cbor:"1,keyasint"`
	Relay     string `cbor:"2,keyasint,omitempty"`
	RTT       uint64 `cbor:"3,keyasint,omitempty"` // µs; 0: not measured
	Since     int64  `cbor:"4,keyasint,omitempty"` // Unix time in seconds
}

// A report is what a node reports of itself. It is read-only.
type report struct {
	name, version string
	roles         []string
	links         []api.TopologyLink // without From and SeenBy
	more          bool
	isOld         bool // the member is away
}

// encodeReport encodes the report of a node, with the first [MaxLinks] of its connections.
func encodeReport(name, version string, roles []string, peers []api.Peer) ([]byte, error) {
	w := wireReport{Version: reportVersion, Name: interact.Excerpt(name, maxText-3), Program: interact.Excerpt(version, maxText-3), Roles: roles}
	if w.More = len(peers) > MaxLinks; w.More {
		peers = peers[:MaxLinks]
	}
	for _, p := range peers {
		l := wireLink{To: string(p.DID), Transport: interact.Clip(p.Transport, maxWord-3), Relay: string(p.Relay), RTT: uint64(max(p.RTT, 0) * 1000)}
		if !p.Opened.IsZero() {
			l.Since = max(p.Opened.Unix(), 0)
		}
		w.Links = append(w.Links, l)
	}
	return cbor.Marshal(w)
}

// parseReport parses the report of a node. An error costs the node its whole report.
func parseReport(raw []byte, from did.DID, now time.Time) (*report, error) {
	if len(raw) > maxReport {
		return nil, fmt.Errorf("a report of %d bytes, %d are allowed", len(raw), maxReport)
	}
	var w wireReport
	if err := cbor.Unmarshal(raw, &w); err != nil {
		return nil, err
	}
	switch {
	case w.Version != reportVersion:
		return nil, fmt.Errorf("unknown version of a report: %d", w.Version)
	case len(w.Links) > MaxLinks:
		return nil, fmt.Errorf("a report of %d connections, %d are allowed", len(w.Links), MaxLinks)
	case len(w.Name) > maxText || len(w.Program) > maxText || len(w.Roles) > maxRoles:
		return nil, fmt.Errorf("a report with a name of %d bytes, a version of %d, and %d roles", len(w.Name), len(w.Program), len(w.Roles))
	}
	r := &report{name: interact.Readable(w.Name), version: interact.Readable(w.Program), more: w.More, links: make([]api.TopologyLink, 0, len(w.Links))}
	for _, role := range []string{roleIndex, roleRelay} { // others are of later versions
		if slices.Contains(w.Roles, role) {
			r.roles = append(r.roles, role)
		}
	}
	seen := make(map[did.DID]bool, len(w.Links))
	for _, l := range w.Links {
		link, err := parseLink(l, now)
		switch {
		case err != nil:
			return nil, err
		case link.To == from || seen[link.To]:
			return nil, fmt.Errorf("a connection of %s with itself, or twice with one node", from.Short())
		}
		seen[link.To] = true
		r.links = append(r.links, link)
	}
	return r, nil
}

func parseLink(w wireLink, now time.Time) (l api.TopologyLink, err error) {
	if l.To, err = parseNode(w.To); err != nil {
		return l, err
	}
	if w.Relay != "" {
		if l.Relay, err = parseNode(w.Relay); err != nil {
			return l, err
		}
	}
	if w.Transport == "" || len(w.Transport) > maxWord || strings.Trim(w.Transport, "abcdefghijklmnopqrstuvwxyz0123456789-/") != "" {
		return l, fmt.Errorf("unknown transport %q", interact.Excerpt(w.Transport, maxWord))
	}
	if w.RTT > uint64(maxRTT.Microseconds()) {
		return l, fmt.Errorf("a round trip of %d µs", w.RTT)
	}
	l.Transport, l.RTT = w.Transport, float64(w.RTT)/1000
	if w.Since > 0 && w.Since <= now.Add(maxSkew).Unix() {
		l.Since = time.Unix(w.Since, 0).UTC()
	}
	return l, nil
}

// parseNode parses the DID of a node, in the only spelling that it has.
func parseNode(text string) (did.DID, error) {
	id := did.DID(text)
	raw, err := id.Peer()
	if err != nil {
		return "", err
	}
	if again, err := did.FromPeer(raw); err != nil || again != id {
		return "", fmt.Errorf("expected the did:key of a node, got %q", interact.Excerpt(text, 80))
	}
	return id, nil
}

// Serve answers a request of a node for the connections of this one (trust.Trust.ServeLinks). The error is Forbidden for one that may not know them.
func (m *Map) Serve(_ context.Context, from *did.Principal, _ []byte) ([]byte, error) {
	if from.Barred != "" || m.forWhom == ForNone || m.forWhom != ForMesh && from.Relation != did.Own {
		return nil, interact.Errorf(interact.Forbidden, "", "this node does not report its connections to %s", from.Short())
	}
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.encoded != nil && now.Sub(m.madeAt) < reportLife {
		return m.encoded, nil
	}
	raw, err := encodeReport(m.name, m.version, m.roles(), m.peers())
	if err == nil {
		m.encoded, m.madeAt = raw, now
	}
	return raw, err
}
