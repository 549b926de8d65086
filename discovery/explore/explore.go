// Package explore follows WoT Discovery introductions and serves the discovered Things.
//
// It explores introductions by DNS-SD (package dnssd) and configured DID documents and URLs (configured.go), at once and every 10 minutes.
// This node signs the TDs of discovered Things with a key that exists only in this process; their owners have not signed them. Discovered
// Things are separate from the directory, so that they are not stored, announced, reconciled or sent to peers. [Discoveries] has them, and
// [View] is the directory together with them, through which the node looks up each Thing.
//
// Sources: WoT Discovery §6 (introductions) and §7.1 (exploration).
package explore

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lmosd/lmosd/discovery/dnssd"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// explore explores an introduction. The found Things replace the earlier ones; after an incomplete exploration the earlier ones stay until
// they expire.
func (d *Discoveries) explore(ctx context.Context, in *introduction) {
	fetch := &fetcher{dial: dialTo(in.Introduction, d.allow(in.configuredHost))}
	defer fetch.close()
	x := dnssd.NewExplorer(dnssd.ExplorerOptions{Network: d.o.Network, Known: d.isInMesh, Fetch: fetch.td,
		Allow: d.allow(in.configuredHost), TLS: d.o.TLS, Secure: in.configuredHost != ""})
	found, tries, unread := map[string]bool{}, 0, false
	var failed []error
	for f, err := range x.Explore(ctx, in.Introduction) {
		var id string
		switch {
		case err != nil:
			unread = true
		case f.Kind == dnssd.KindLink:
			continue // the linked TD is yielded separately
		case tries >= max(triesPerVisit, in.limit()) || len(found) >= in.limit():
			err = errors.New("the host has more Things than the limit")
		default:
			tries++
			if id, err = d.add(ctx, in, f, time.Now()); err == nil {
				found[id] = true
				continue
			}
			failed = append(failed, fmt.Errorf("%s: %w", f.From, err))
			continue
		}
		failed = append(failed, err)
		break
	}
	if ctx.Err() != nil {
		return
	}
	d.states.explored(in.Name, errors.Join(failed[:min(len(failed), 4)]...), time.Now())
	if !unread {
		d.things.removeExcept(in, found)
	}
	d.things.removeExpired(time.Now())
	d.o.Log.Debug("introduction explored", "introduction", in.Instance, "url", in.URL, "things", len(found),
		"err", errors.Join(failed[:min(len(failed), 4)]...))
}

// add creates a discovered Thing from a found TD, signed by this node.
func (d *Discoveries) add(ctx context.Context, in *introduction, f dnssd.Found, now time.Time) (id string, err error) {
	id, err = d.idOf(f)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(f.Raw)
	if d.things.unchanged(in, id, sum, now) {
		return id, nil
	}
	raw, err := rewrite(f, id)
	if err != nil {
		return "", err
	}
	if err := d.things.checkLimits(in, id); err != nil {
		return "", err // before signing, which is expensive
	}
	t, err := td.Complete(raw, d.Owner())
	if err != nil {
		return "", err
	}
	signed, err := td.Sign(t, d.things.signer, td.Lease{Seq: millis(now), Now: now, Lifetime: validity})
	if err != nil {
		return "", err
	}
	desc, err := signed.Verify(ctx, d.o.Verifier, now)
	if err != nil {
		return "", err
	}
	return id, d.things.put(ctx, &Discovered{Description: desc, Agent: in.agent(desc), in: in, sum: sum})
}

// idOf returns the id of a discovered Thing: the id of its TD, or a new id if the TD has none, or has an id with the key of another owner,
// for which this node cannot sign. An id with this node's key is rejected, because the Thing would look like one of this node.
func (d *Discoveries) idOf(f dnssd.Found) (string, error) {
	ref := td.ParseRef(f.ID)
	switch {
	case f.ID != "" && ref.Owner == "":
		return f.ID, nil
	case f.ID != "" && (ref.Owner == string(d.o.Self) || d.things.isSigner(ref.Owner) || ref.Name != f.ID):
		return "", fmt.Errorf("the id %q belongs to another owner", f.ID)
	}
	var doc struct {
		Title string `json:"title"`
	}
	_ = json.Unmarshal(f.Raw, &doc) // without a title, the URL and the id distinguish Things
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s", f.From, f.ID, doc.Title))
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80 // RFC 9562 §5.8
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16]), nil
}

// rewrite returns a TD in the form that this node signs: with the id, a link to its source and the member of discovered Things,
// without proof and registration. The default base is the source (RFC 3986 §5.1.3).
func rewrite(f dnssd.Found, id string) ([]byte, error) {
	members, err := jcs.Members(f.Raw)
	if err != nil {
		return nil, err
	}
	link := map[string]any{"rel": "describedby", "href": f.From, "type": "application/td+json"}
	links, base := []any{link}, f.From
	for _, m := range members {
		var original []any
		switch m.Name {
		case "links":
			if err := json.Unmarshal(m.Raw, &original); err != nil {
				return nil, fmt.Errorf("links: %w", err)
			}
			links = append(original, link)
		case "base":
			base = ""
		}
	}
	members = slices.DeleteFunc(members, func(m jcs.Member) bool {
		return slices.Contains([]string{"id", "links", "proof", "registration", discoveredMember}, m.Name)
	})
	more := map[string]any{"id": id, "links": links, discoveredMember: f.From}
	if base != "" {
		more["base"] = base
	}
	for _, name := range slices.Sorted(maps.Keys(more)) {
		raw, err := json.Marshal(more[name])
		if err != nil {
			return nil, err
		}
		members = append(members, jcs.Member{Name: name, Raw: raw})
	}
	return jcs.Join(members), nil
}

func millis(t time.Time) uint64 { return uint64(t.UnixMilli()) }
