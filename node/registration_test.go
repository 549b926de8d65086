package node

import (
	"bytes"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// What the directory says of a thing is stored with it, and goes on over renewals and restarts until it is published anew.
func TestRegistrations(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	begin := time.Now()
	of, _, err := d.offers.publish(t.Context(), tool("Echo", "urn:x:echo"), nil, tdd.Registration{TTL: 600})
	if err != nil {
		t.Fatal(err)
	}
	first, ok := d.registered(of.desc.Record)
	if !ok || first.Expires.Sub(first.Modified) != 10*time.Minute || first.Created.Before(begin) {
		t.Errorf("got %+v, %v", first, ok)
	}
	if _, err := d.renew(t.Context(), "urn:x:echo"); err != nil {
		t.Fatal(err)
	}
	if got, _ := d.registered(of.desc.Record); got != first {
		t.Errorf("renewed: %+v, want %+v", got, first)
	}
	later := begin.Add(time.Minute)
	if err := d.register(t.Context(), "urn:x:echo", first, later); err != nil {
		t.Fatal(err)
	}
	d = d.restart(begin.Add(2 * time.Minute))
	got, _ := d.registered(of.desc.Record)
	if !got.Expires.Equal(later.Add(10*time.Minute)) || !got.Created.Equal(first.Created) || !got.Modified.Equal(first.Modified) ||
		got.TTL != 600 {
		t.Errorf("after a restart: %+v, first %+v", got, first)
	}
	if again := d.publish("Echo", "urn:x:echo").Registration; !again.Expires.IsZero() || !again.Created.Equal(first.Created) {
		t.Errorf("published anew: %+v", again)
	}
	stranger := *of.desc.Record
	stranger.Owner = newKey(t).DID()
	d.withdraw("urn:x:echo")
	for _, r := range []*td.Record{&stranger, of.desc.Record} {
		if _, ok := d.registered(r); ok {
			t.Errorf("%s of %s is registered", r.Thing, r.Owner)
		}
	}
	if err := d.register(t.Context(), "urn:x:echo", first, later); codeOf(err) != interact.Withdrawn {
		t.Errorf("extended after it was withdrawn: %v", err)
	}
}

// A thing whose registration ends is withdrawn: whoever watches the directory is told.
func TestAThingExpires(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Dir, o.HTTP = t.TempDir(), &HTTP{Listen: "127.0.0.1:0", Explicit: true}
	n := start(t, o)
	token, err := os.ReadFile(n.Status().DataDir + "/api.token")
	if err != nil {
		t.Fatal(err)
	}
	raw := tool("Echo", "urn:x:echo")
	raw = append(bytes.TrimSuffix(raw, []byte("}")), `,"registration":{"ttl":0.2}}`...)
	req, err := http.NewRequestWithContext(t.Context(), "PUT", n.API()+"/things/urn:x:echo", bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/td+json")
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("status %d", resp.StatusCode)
	}
	var kinds []directory.ChangeKind
	for c, err := range n.Watch(t.Context(), td.Query{ID: "urn:x:echo"}, 1) {
		if err != nil {
			t.Fatal(err)
		}
		if c.Kind == directory.Missed {
			continue
		}
		if kinds = append(kinds, c.Kind); c.Kind == directory.Gone {
			break
		}
	}
	if len(kinds) != 2 || kinds[0] != directory.Added {
		t.Errorf("saw %v", kinds)
	}
}

// A description whose forms lead through the mesh can be changed without its agent: they lead to it as before.
func TestANewDescriptionKeepsTheAgent(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	draft, err := td.Draft([]byte(`{"id":"urn:x:echo","title":"Echo","actions":{"say":{}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		raw   []byte
		agent interact.Thing
		kept  bool
	}{{draft, echo, true}, {bytes.Replace(draft, []byte("Echo"), []byte("Echo 2"), 1), nil, true}, {tool("Echo", "urn:x:echo"), nil, false}} {
		of, _, err := d.offers.publish(t.Context(), c.raw, c.agent, tdd.Registration{})
		if err != nil || (of.agent != nil) != c.kept {
			t.Errorf("%s: %v, agent %v", c.raw, err, of.agent)
		}
	}
}
