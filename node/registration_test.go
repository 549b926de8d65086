package node

import (
	"bytes"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/td"
)

// A Thing whose registration ends is withdrawn, and watchers of the directory are notified.
func TestThingExpires(t *testing.T) {
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
	for c, err := range n.view.Watch(t.Context(), td.Query{ID: "urn:x:echo"}, 1) {
		if err != nil {
			t.Fatal(err)
		}
		if c.Kind == directory.Overflow {
			continue
		}
		if kinds = append(kinds, c.Kind); c.Kind == directory.Removed {
			break
		}
	}
	if len(kinds) != 2 || kinds[0] != directory.Added {
		t.Errorf("saw %v", kinds)
	}
	if resp, err = client.Get(n.API() + "/things/urn:x:echo"); err != nil { // tdd-registrationinfo-expiry-purge
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("status %d after the end", resp.StatusCode)
	}
}
