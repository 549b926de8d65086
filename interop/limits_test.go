package interop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interop/testmesh"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/access"
)

// A node has limits per caller and per Thing. When one lasting call exhausts them, further calls through each listener of another node get
// errors of their protocol, with the time to wait.
func TestLimitsOfTheHost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules  policy.Rules
		code   interact.Code
		status int
		coap   string
		wait   int // calls that may wait for the first
	}{
		"of a caller at once":  {policy.Rules{CallerConcurrency: 1}, interact.Overloaded, 503, "ServiceUnavailable", 0},
		"of a thing at once":   {policy.Rules{ThingConcurrency: 1}, interact.Overloaded, 503, "ServiceUnavailable", 2},
		"of a caller a second": {policy.Rules{PerPeer: 1e-3, Burst: 1}, interact.RateLimited, 429, "TooManyRequests", 0},
		"of a thing a second":  {policy.Rules{PerThing: 1e-3, ThingBurst: 1}, interact.RateLimited, 429, "TooManyRequests", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := testmesh.Start(t, func(o *node.Options) {
				if o.Name == "host" {
					o.Policy = c.rules
					o.Policy.Untrusted = access.UntrustedOpen
				}
			})
			came, release := make(chan struct{}, 100), make(chan struct{})
			thing := interact.Unary(func(_ context.Context, q *interact.Message) (*interact.Message, error) {
				came <- struct{}{}
				<-release
				return completed(q, "", []byte("1")), nil
			})
			m.Offer(t, simple("slow", "work", "http://127.0.0.1:1", ""), thing)
			m.Known(t, "slow")
			first := make(chan error, 1+c.wait)
			call := func() {
				_, err := send(openGo(t, m, "slow"), query(interact.InvokeAction, "work", ""))
				first <- err
			}
			go call()
			<-came
			full(t, m, c.wait, first, call)
			var calls sync.WaitGroup
			for _, b := range consumerBindings {
				k := b.open(t, m, "slow")
				calls.Go(func() {
					_, err := send(k, query(interact.InvokeAction, "work", ""))
					k.hangUp()
					if !errors.Is(err, errNot) && (!coded(err, c.code) || b.name == "CoAP" && !strings.Contains(err.Error(), c.coap)) {
						t.Errorf("%s: got %v, want %v", b.name, err, c.code)
					}
				})
			}
			calls.Wait()
			h := newHTTPTalk(m, "slow")
			defer h.client.CloseIdleConnections()
			resp, err := h.client.Post(m.API+"/things/slow/actions/work", interact.JSON, strings.NewReader(""))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != c.status || resp.Header.Get("Retry-After") == "" {
				t.Errorf("HTTP: %s, Retry-After %q, want %d", resp.Status, resp.Header.Get("Retry-After"), c.status)
			}
			close(release)
			for range 1 + c.wait {
				if err := <-first; err != nil {
					t.Errorf("a call that had a place, or waited for one: %v", err)
				}
			}
			if n := len(came); n != c.wait {
				t.Errorf("%d others came to the agent, want %d", n, c.wait)
			}
		})
	}
}

// full checks that wait calls wait for a place: one more is rejected, while the first has no response.
func full(t *testing.T, m *testmesh.Mesh, wait int, first chan error, call func()) {
	t.Helper()
	if wait == 0 {
		return
	}
	for range wait + 1 {
		go call()
	}
	if err := <-first; !coded(err, interact.Overloaded) {
		t.Errorf("one call more than may wait: %v", err)
	}
}

// An input with two wrong members for an agent of another node gets an error with the JSON pointer of each, through every listener.
func TestWrongInputNamesItsPlace(t *testing.T) {
	t.Parallel()
	m := testmesh.Start(t)
	_, raw, thing := newLamp(t, "lamp")
	m.Offer(t, raw, thing)
	m.Known(t, "lamp")
	wrong := query(interact.InvokeAction, "add", `{"a":"x","b":1.5}`)
	for _, b := range consumerBindings {
		k := b.open(t, m, "lamp")
		_, err := send(k, wrong)
		k.hangUp()
		var e *interact.Error
		said := fmt.Sprint(err)
		switch errors.As(err, &e); {
		case errors.Is(err, errNot):
			continue
		case e != nil:
			said = fmt.Sprint(e.Code, e.Issues)
			if !e.Remote {
				t.Errorf("%s: the host was not asked: %v", b.name, err)
			}
		case b.name == "CoAP": // has room for one
			said += "/b"
		}
		if !strings.Contains(said, interact.Invalid.String()) || !strings.Contains(said, "/a") || !strings.Contains(said, "/b") {
			t.Errorf("%s: got %s, want the places /a and /b", b.name, said)
		}
	}
	resp, err := http.Post(m.API+"/things/lamp/actions/add", interact.JSON, strings.NewReader(string(wrong.Data)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var problem struct {
		Code             string
		ValidationErrors []struct{ Field, Description string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&problem); err != nil {
		t.Fatal(err)
	}
	if p := problem.ValidationErrors; resp.StatusCode != 400 || len(p) != 2 || p[0].Field != "/a" || p[1].Field != "/b" ||
		p[0].Description == "" {
		t.Errorf("HTTP: %s %+v", resp.Status, problem)
	}
}
