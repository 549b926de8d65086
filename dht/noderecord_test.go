package dht

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/p2p/noderecord"
)

func nodeRecord(t testing.TB, n int, at time.Time, addr string) *noderecord.Record {
	t.Helper()
	r, err := noderecord.Sign(testSigner(t, n), "test", []ma.Multiaddr{testAddr(t, addr)}, at)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The addresses of a node that nobody is connected with come from its own record, the newest one.
func TestFindPeerBySignedAddresses(t *testing.T) {
	t.Parallel()
	nodes := loopbackMesh(t, 3)
	acquainted(t, nodes, 2)
	old, next := nodeRecord(t, 99, time.Now().Add(-time.Minute), "/ip4/127.0.0.1/tcp/1"), nodeRecord(t, 99, time.Now(), "/ip4/127.0.0.1/tcp/2")
	for i, r := range []*noderecord.Record{old, next} {
		if n, err := nodes[0].PublishNode(t.Context(), r); err != nil || n != 2 {
			t.Fatalf("record %d has %d replicas: %v", i, n, err)
		}
	}
	if _, err := nodes[0].PublishNode(t.Context(), old); err == nil {
		t.Error("an older record was stored")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	found, err := nodes[2].FindPeer(ctx, next.Peer)
	if err != nil || len(found.Addrs) == 0 || !found.Addrs[0].Equal(next.Addrs[0]) {
		t.Errorf("found %v, %v", found, err)
	}
	if got := nodes[2].o.Nodes.Addrs(next.Peer, time.Now()); !slices.EqualFunc(got, next.Addrs, ma.Multiaddr.Equal) {
		t.Errorf("the book has %s", got)
	}
	if _, err := nodes[2].FindPeer(ctx, nodeRecord(t, 98, time.Now(), "/ip4/127.0.0.1/tcp/1").Peer); err == nil {
		t.Error("an unknown node was found")
	}
}

func TestNodeValidator(t *testing.T) {
	t.Parallel()
	r, other := nodeRecord(t, 1, time.Now(), "/ip4/192.0.2.1/tcp/1"), nodeRecord(t, 2, time.Now(), "/ip4/192.0.2.1/tcp/1")
	expired := bytes.Clone(r.Raw)
	expired[len(expired)/2]++
	v := nodeValidator{"test"}
	for name, c := range map[string]struct {
		key   string
		value []byte
		ok    bool
	}{
		"valid":           {nodeKey(r.Peer), r.Raw, true},
		"of another node": {nodeKey(r.Peer), other.Raw, false},
		"changed":         {nodeKey(r.Peer), expired, false},
		"empty":           {nodeKey(r.Peer), nil, false},
		"another key":     {"/" + namespaceNode + "/", r.Raw, false},
	} {
		if err := v.Validate(c.key, c.value); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	next := nodeRecord(t, 1, time.Now().Add(time.Second), "/ip4/192.0.2.1/tcp/1")
	for i, c := range []struct {
		values [][]byte
		want   int
	}{{[][]byte{r.Raw, next.Raw}, 1}, {[][]byte{next.Raw, r.Raw}, 0}, {[][]byte{nil, r.Raw, r.Raw}, 1}, {[][]byte{nil}, -1}} {
		if got, err := v.Select(nodeKey(r.Peer), c.values); got != c.want || (err != nil) != (c.want < 0) {
			t.Errorf("%d: got %d, %v", i, got, err)
		}
	}
}
