package node

import (
	"fmt"
	"slices"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// New keys publish five times as many Things as directories have room for. After that, a new and an old honest agent are found, shown and called at
// every node, and the nodes report that they are full.
func TestNewKeysDoNotEvictAgents(t *testing.T) {
	t.Parallel()
	const most, keys, each = 24, 4, 30
	honest := make([]*running, 3)
	for i := range honest {
		o := quiet()
		o.MaxThings = most
		honest[i] = start(t, o)
		for _, other := range honest[:i] {
			connect(t, honest[i], other)
		}
	}
	before := publish(t, honest[0], toolAt("Before", "", newAgent(t).url))
	for _, n := range honest {
		knows(t, n, before)
	}
	for k := range keys {
		fresh := start(t, quiet())
		for _, n := range honest {
			connect(t, fresh, n)
		}
		for i := range each {
			publish(t, fresh, tool(fmt.Sprintf("Flood %d %d", k, i), fmt.Sprintf("urn:flood:%d:%d", k, i)))
		}
	}
	for _, n := range honest {
		until(t, "the directory is full", n.mesh.directory.IsIncomplete)
		if !slices.ContainsFunc(n.Status().Warnings, func(w api.Warning) bool { return w.Code == "LMOS-W050" && w.Hint != "" }) {
			t.Errorf("the node warns of %+v; want directory-full", n.Status().Warnings)
		}
	}

	o := quiet()
	o.MaxThings = most
	late := start(t, o)
	for _, n := range honest {
		connect(t, late, n)
	}
	ref := publish(t, late, toolAt("Newcomer", "", newAgent(t).url))
	for i, n := range append(honest, late) {
		knows(t, n, ref)
		for _, name := range []string{"newcomer", "before"} {
			list, err := n.Client().Find(t.Context(), td.Query{Text: name}, 0)
			if err != nil || len(list.Items) == 0 || list.Items[0].Name != name {
				t.Errorf("node %d: find %s: %v, %+v", i, name, err, list)
			}
			if _, err := n.Client().Agent(t.Context(), name); err != nil {
				t.Errorf("node %d: show %s: %v", i, name, err)
			}
			if err := ask(t, n, name); err != nil {
				t.Errorf("node %d: call %s: %v", i, name, err)
			}
		}
		s := n.mesh.directory.Stats()
		t.Logf("node %d: %d known of %d that fresh keys published; %d refused, %d left", i, s.Known, keys*each, s.Refused, s.Evicted)
	}
}

// A search reports the total and has a next page; its limit is not reported as an incomplete mesh.
func TestSearchesHaveANextPage(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 2)
	const n, limit = 5, 2
	for i := range n {
		knows(t, nodes[1], publish(t, nodes[0], tool(fmt.Sprintf("Clerk %d", i), "")))
	}
	for name, q := range map[string]td.Query{"words": {Text: "clerk"}, "all": {}, "capability": {Capability: []string{"urn:example:tool"}}} {
		q.Limit = limit
		seen := map[string]bool{}
		list, err := nodes[1].Client().Find(t.Context(), q, 0)
		for page := 0; ; page++ {
			if err != nil {
				t.Fatal(name, err)
			}
			if list.Total == nil || *list.Total != n || !list.Coverage.Complete() || (list.Next != "") != (page < 2) || len(list.Items) != min(limit, n-page*limit) {
				t.Fatalf("%s: page %d: %+v", name, page, list)
			}
			for _, a := range list.Items {
				seen[a.Ref] = true
			}
			if list.Next == "" {
				break
			}
			list, err = nodes[1].Client().NextPage(t.Context(), list.Next, 0)
		}
		if len(seen) != n {
			t.Errorf("%s: %d of %d came", name, len(seen), n)
		}
	}
	_, err := nodes[1].Client().NextPage(t.Context(), "made up", 0)
	wantCode(t, err, interact.Usage)
}

// Things that a full directory has refused are found in the DHT: by name, by capability and by id, and by a name that an untrusted Thing in the
// index also has.
func TestFullDirectoryQueriesTheMesh(t *testing.T) {
	t.Parallel()
	const most = 16
	hub := start(t, quiet())
	o := quiet()
	o.MaxThings, o.Policy.Principal = most, members(hub.DID()) // whose things never leave
	small := start(t, o)
	connect(t, small, hub)
	for i := range 3 * most {
		publish(t, hub, tool(fmt.Sprintf("Filler %d", i), ""))
	}
	until(t, "the directory is full", small.mesh.directory.IsIncomplete)
	far := start(t, quiet())
	connect(t, far, hub)
	ref := publish(t, far, toolAt("Seldom", "", newAgent(t).url))
	knows(t, hub, ref)
	until(t, "the name is in the DHT", func() bool {
		a, err := small.Client().Agent(t.Context(), "seldom")
		return err == nil && a.Agent.Ref == ref
	})
	if err := ask(t, small, "seldom"); err != nil {
		t.Error(err)
	}
	if has(small, ref) {
		t.Error("the directory took it: nothing was asked of the mesh")
	}
	for name, q := range map[string]td.Query{"name": {Name: "seldom"}, "capability": {Capability: []string{"urn:example:tool:echo"}, Text: "seldom"}} {
		list, err := small.Client().Find(t.Context(), q, 0)
		if err != nil || !slices.ContainsFunc(list.Items, func(a api.Agent) bool { return a.Ref == ref }) || list.Coverage.Asked < 2 {
			t.Errorf("by %s: %v, %+v", name, err, list)
		}
	}
}
