package a2a

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
)

// inside answers requests of a client without a network, so that the test can use synthetic time.
type inside struct {
	mu    sync.Mutex
	card  string
	tag   string // of the card; empty: the server has none
	fails bool
	asked []string // the requests with their responses
}

func (f *inside) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := httptest.NewRecorder()
	switch {
	case f.fails:
		return nil, errors.New("unreachable")
	case r.Method == http.MethodPost:
		var q struct{ ID json.RawMessage }
		_ = json.NewDecoder(r.Body).Decode(&q)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"no such skill"}}`, q.ID)
	case f.tag != "" && r.Header.Get("If-None-Match") == f.tag:
		w.WriteHeader(http.StatusNotModified)
	default:
		w.Header().Set("ETag", f.tag)
		io.WriteString(w, f.card)
	}
	f.asked = append(f.asked, fmt.Sprint(r.Method, w.Code))
	return w.Result(), nil
}

// TestCardIsFetchedAgain: the card of an agent is fetched again periodically, with the validator of the server, and soon after the agent
// reports a missing skill. Unreadable or untrusted cards change nothing.
func TestCardIsFetchedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		describe := func(skill string) string {
			return `{"name":"F","description":"d","version":"1","capabilities":{},"defaultInputModes":["a/b"],"defaultOutputModes":["a/b"],
				"supportedInterfaces":[{"url":"https://f.example/","protocolBinding":"JSONRPC","protocolVersion":"1.0"}],"skills":[{"id":"` + skill + `","name":"S","description":"x","tags":["t"]}]}`
		}
		f := &inside{card: describe("one"), tag: `"1"`}
		target, _ := url.Parse("https://f.example")
		i := newImported(New(Options{CardRefresh: 10 * time.Minute}).o, target, "https://f.example", bridge.Import{})
		i.client.Transport = f
		if _, err := i.load(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		drafts, ended := make(chan string, 8), make(chan bool)
		go func() {
			defer close(ended)
			for draft := range i.changes(ctx) {
				drafts <- string(draft)
			}
		}()
		step := func(name string, change func(), after time.Duration, want, asked string, then ...func()) {
			t.Helper()
			f.mu.Lock()
			f.asked = nil
			change()
			f.mu.Unlock()
			for _, do := range then {
				do()
			}
			time.Sleep(after)
			synctest.Wait()
			select {
			case draft := <-drafts:
				if want == "" || !strings.Contains(draft, `"a2a:skill":"`+want+`"`) {
					t.Errorf("%s: %s", name, draft)
				}
			default:
				if want != "" {
					t.Errorf("%s: nothing changed", name)
				}
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if got := strings.Join(f.asked, " "); got != asked {
				t.Errorf("%s: the server received %q, want %q", name, got, asked)
			}
		}
		const every = 10*time.Minute + time.Second
		step("too soon", func() {}, 9*time.Minute, "", "")
		step("the same", func() {}, time.Minute+time.Second, "", "GET304")
		step("another", func() { f.card, f.tag = describe("two"), `"2"` }, every, "two", "GET200")
		step("the same by another tag", func() { f.tag = `"3"` }, every, "", "GET200")
		step("no tags", func() { f.tag = "" }, every, "", "GET200")
		step("unreachable", func() { f.fails = true }, every, "", "")
		step("rubbish", func() { f.fails, f.card = false, "<html>" }, every, "", "GET200")
		key := didtest.Key(9)
		c, err := card.Parse([]byte(describe("three")))
		if err == nil {
			err = card.Sign(c, key)
		}
		if err != nil {
			t.Fatal(err)
		}
		signed, _ := c.Bytes()
		step("a wrong signature", func() { f.card = string(bytes.Replace(signed, []byte("three"), []byte("thief"), 1)) }, every, "", "GET200")
		step("a right one", func() { f.card = string(signed) }, every, "three", "GET200")

		// A failed call causes an early read of the card, and many calls do not cause more reads.
		call := func() {
			_, err := interact.Call(t.Context(), i, &interact.Message{Type: interact.InvokeAction, Name: "three", ID: interact.NewID(), Data: []byte(`"x"`)})
			if interact.AsError(err).Code != interact.Invalid {
				t.Errorf("the call gives %v", err)
			}
		}
		time.Sleep(time.Minute)
		step("a skill is gone", func() { f.card = describe("four") }, 0, "", "")
		step("soon", func() {}, time.Second, "four", "POST200 GET200", call)
		for range 10 {
			call()
		}
		step("not before a pause", func() {}, 3*time.Second, "", "")
		step("after it", func() {}, 3*time.Second, "", "GET200")
		cancel()
		<-ended
	})
}

// Keys are accepted from the card's own site, from origins that the operator trusts, and from no others.
func TestTrustedKeyOrigins(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	for path, text := range map[string]string{"/jwks.json": `{"keys":[]}`, "/large": strings.Repeat(" ", card.MaxKeySet+1)} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, text) })
	}
	s := httptest.NewServer(mux)
	defer s.Close()
	otherOrigin := httptest.NewServer(mux)
	defer otherOrigin.Close()
	mux.Handle("/moved", http.RedirectHandler(otherOrigin.URL+"/jwks.json", http.StatusFound))
	target, _ := url.Parse(s.URL + "/agent")
	i := newImported(New(Options{KeyOrigins: []string{"https://10.1.2.3/", "https://localhost:1", otherOrigin.URL}}).o, target, s.URL, bridge.Import{})
	defer i.close()
	for jku, want := range map[string]string{
		s.URL + "/jwks.json": "", otherOrigin.URL + "/jwks.json": "neither that of the card", // trusted, but not with TLS
		"https://keys.example/jwks.json": "neither that of the card", "https://10.1.2.3/jwks.json": "refused to connect", "https://localhost:1/jwks.json": "refused to connect",
		s.URL + "/none": "responds with 404", s.URL + "/moved": "responds with 302", s.URL + "/large": "exceeds", "file:///etc/passwd": "invalid URL", "": "invalid URL", "http://u:p@" + target.Host: "invalid URL",
	} {
		raw, err := i.keys.(*keyring).KeySet(t.Context(), jku)
		if want == "" && (err != nil || string(raw) != `{"keys":[]}`) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q gives %s, %v; want %q", jku, raw, err, want)
		}
	}
}
