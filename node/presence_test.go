package node

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/directory/reachability"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// stateOf returns the state of the thing that ref names, as n lists it without asking anybody.
func stateOf(n *running, ref string) reachability.State {
	for d := range n.view.Known(did.AsProcess(context.Background())) {
		if d.Ref() == ref {
			return n.mesh.monitor.Presence(d).State
		}
	}
	return ""
}

// A node that joins after a host has failed receives valid records of that host. It lists none as reachable, and probes the host.
func TestLateJoinerListsLostHostsAsNotReachable(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 2)
	host, middle := nodes[0], nodes[1]
	url := newAgent(t).url
	var refs []string
	for i := range 12 {
		refs = append(refs, publish(t, host, toolAt(fmt.Sprint("Echo ", i), fmt.Sprintf("urn:x:echo:%d", i), url)))
		knows(t, middle, refs[i])
	}
	published := time.Now()
	if err := host.stop(); err != nil {
		t.Fatal(err)
	}
	late := start(t, quiet())
	connect(t, late, middle)
	for _, ref := range refs {
		knows(t, late, ref)
		if s := stateOf(late, ref); s == reachability.Reachable {
			t.Errorf("%s is %s before anybody asked", ref, s)
		}
	}
	until(t, "all are unreachable", func() bool {
		gone := 0
		for _, a := range found(t, late) {
			switch {
			case a.State == api.StateReachable:
				t.Fatalf("%s is said to be reachable", a.Ref)
			case a.LastSeen.After(published) || a.LastSeen.IsZero():
				t.Fatalf("%s was last seen at %v, after its host stopped at %v", a.Ref, a.LastSeen, published)
			case a.State == api.StateUnreachable:
				gone++
			}
		}
		return gone == len(refs)
	})
}

// An agent without its server is unreachable: at its host, at a node that called it, and at one that only lists it.
func TestAgentWithoutItsServerIsUnreachable(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 3)
	host, caller, looker := nodes[0], nodes[1], nodes[2]
	agent := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w, []byte(`"x"`), nil) })
	server := httptest.NewServer(agent)
	defer func() { server.Close() }()
	addr := server.Listener.Addr().String()
	ref := publish(t, host, toolAt("Echo", "urn:x:echo", server.URL))
	for _, n := range nodes {
		knows(t, n, ref)
		if l := found(t, n); len(l) != 1 || l[0].State != api.StateReachable {
			t.Fatalf("listed %+v while all is well", l)
		}
	}
	server.Close()
	e := wantCode(t, ask(t, caller, ref), interact.Unreachable)
	if !e.Remote {
		t.Errorf("%v: the host was reached", e)
	}
	if s := stateOf(host, ref); s != reachability.Unreachable {
		t.Errorf("the host says %s after a call has failed", s)
	}
	until(t, "the caller says unreachable", func() bool { return stateOf(caller, ref) == reachability.Unreachable })
	if l := found(t, looker); len(l) != 1 || l[0].State != api.StateUnreachable || time.Since(l[0].LastSeen) > time.Minute {
		t.Errorf("the observer lists %+v", l)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Skip("the port was taken meanwhile")
	}
	server = &httptest.Server{Listener: l, Config: &http.Server{Handler: agent}}
	server.Start()
	if err := ask(t, caller, ref); err != nil {
		t.Fatal(err)
	}
	if s, c := stateOf(host, ref), stateOf(caller, ref); s != reachability.Reachable || c != reachability.Reachable {
		t.Errorf("after a call the host says %s, the caller %s", s, c)
	}
	if d, err := looker.Client().Agent(t.Context(), ref); err != nil || d.Agent.State != api.StateReachable {
		t.Errorf("the observer shows %+v, %v", d, err)
	}
	server.Close() // no caller is left
	for _, n := range []*running{looker, host} {
		if d, err := n.Client().Agent(t.Context(), ref); err != nil || d.Agent.State != api.StateUnreachable {
			t.Errorf("shown as %+v, %v", d, err)
		}
	}
}

// An attached agent whose connection broke is unreachable as long as its publication is kept.
func TestDetachedAgentIsUnreachable(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 2)
	host, other := nodes[0], nodes[1]
	id, gone, err := host.mesh.publisher.Attach(t.Context(), tool("Echo", "urn:x:echo"), echo)
	if err != nil {
		t.Fatal(err)
	}
	ref := td.ExactRef(id, host.DID())
	knows(t, other, ref)
	for _, n := range nodes {
		if l := found(t, n); len(l) != 1 || l[0].State != api.StateReachable {
			t.Fatalf("listed %+v while it is here", l)
		}
	}
	gone(false)
	if s := stateOf(host, ref); s != reachability.Unreachable {
		t.Errorf("the host says %s", s)
	}
	if l := found(t, other); len(l) != 1 || l[0].State != api.StateUnreachable {
		t.Errorf("the other lists %+v", l)
	}
	if _, _, err = host.mesh.publisher.Attach(t.Context(), tool("Echo", "urn:x:echo"), echo); err != nil {
		t.Fatal(err)
	}
	if s := stateOf(host, ref); s != reachability.Reachable {
		t.Errorf("the host says %s of one that is back", s)
	}
	if l := found(t, other); len(l) != 1 || l[0].State != api.StateReachable {
		t.Errorf("the other lists %+v", l)
	}
}

// A foreign record that names this node as a host makes no Thing reachable: any node can sign one.
func TestForeignRecordWithThisNodeAsHostIsNotReachable(t *testing.T) {
	t.Parallel()
	n := start(t, quiet())
	n.mesh.directory.Enqueue(signed(t, didtest.NewKey(), tool("Echo", "urn:x:echo"), td.Lease{Hosts: []td.Host{{Node: n.DID()}}}))
	knows(t, n, "urn:x:echo")
	if l := found(t, n); len(l) != 1 || l[0].State != api.StateUnknown || l[0].Local {
		t.Errorf("listed %+v", l)
	}
}

// A name that looks like this node's own is marked in lists and when it is shown, for programs too; the own one is not.
func TestSimilarNamesAreReported(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 2)
	here, far := nodes[0], nodes[1]
	fake := publish(t, far, toolAt("\u0415cho", "urn:x:fake", newAgent(t).url))
	knows(t, here, fake)
	own := publish(t, here, toolAt("Echo", "urn:x:echo", newAgent(t).url))
	for _, a := range found(t, here) {
		want := map[string]string{own: "", fake: "echo"}[a.Ref]
		if a.Resembles != want {
			t.Errorf("%s resembles %q, want %q", a.Name, a.Resembles, want)
		}
	}
	if d, err := here.Client().Agent(t.Context(), fake); err != nil || d.Agent.Resembles != "echo" {
		t.Errorf("shown as %+v, %v", d, err)
	}
	if d, err := here.Client().Agent(t.Context(), "echo"); err != nil || d.Agent.Ref != own {
		t.Errorf("the name leads to %+v, %v", d, err)
	}
}

// Plain HTTP beyond loopback is refused where it needs a token.
func TestTokensInTheClear(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		http    HTTP
		refused bool
	}{
		"all addresses":        {HTTP{Listen: "0.0.0.0:0"}, true},
		"behind a plain proxy": {HTTP{Listen: "0.0.0.0:0", Operation: gateway.Operation{PublicURL: "http://node.example"}}, true},
		"all addresses of v6":  {HTTP{Listen: "[::]:0"}, true},
		"loopback":             {HTTP{Listen: "127.0.0.1:0"}, false},
		"a socket only":        {HTTP{Listen: gateway.None}, false},
		"behind TLS":           {HTTP{Listen: ":0", Operation: gateway.Operation{PublicURL: "HTTPS://node.example"}}, false},
		"behind a proxy":       {HTTP{Listen: "0.0.0.0:0", Proxy: true}, false},
		"an open directory":    {HTTP{Listen: "0.0.0.0:0", Operation: gateway.Operation{OpenDirectory: true}}, false},
	} {
		o := quiet()
		o.HTTP = &c.http
		n, err := New(o)
		if err == nil {
			err = n.Close()
		}
		if e := interact.AsError(err); (e != nil) != c.refused || c.refused && (e.Code != interact.ConfigInvalid || !strings.Contains(e.Hint, "http.tls.mode: proxy")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
