package directory

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/index"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/liveheap"
	"github.com/lmosd/lmosd/td"
)

// fresh returns a description of a new owner.
func fresh(i int, kind td.Kind) *td.Description {
	now := time.Now().UTC().Truncate(time.Second)
	id, owner := fmt.Sprintf("urn:fresh:%d", i), did.DID(fmt.Sprintf("did:key:z6Mkfresh%d", i))
	desc := &td.Description{
		Record: &td.Record{Owner: owner, Thing: id, Seq: 1, Kind: kind, Issued: now, Expires: now.Add(time.Hour), Raw: []byte(id),
			Hosts: []td.Host{{Node: owner}}},
		Signed: &td.Signed{Record: []byte(id)},
	}
	if kind == td.KindTD {
		desc.Thing = &td.Thing{ID: id, Title: fmt.Sprintf("Fresh%dword", i), Raw: []byte(id)}
		desc.Record.Title, desc.Record.Hash = desc.Title, td.Key(owner, id)
	}
	return desc
}

// Valid records of new keys use bounded memory. With a million keys: go test -run FreshKeys -freshkeys 1000000.
func TestFreshKeysAreBounded(t *testing.T) {
	t.Parallel()
	const most = 100
	d := openDirectory(t, Options{Max: most, Store: memory(), Probe: noProbe, Embedder: &topicEmbedder{}})
	for i := range *freshKeys {
		desc := fresh(i, td.KindTD)
		_, err := d.put(desc, received)
		if i < most && err != nil || err != nil && interact.AsError(err).Code != interact.Overloaded {
			t.Fatalf("%d: %v", i, err)
		}
		if _, err := d.put(fresh(-i-1, td.KindTombstone), received); (err != nil) != (i >= most) {
			t.Fatalf("%d: %v", i, err)
		}
		d.SetReachable(desc.Record.Owner, false)
	}
	for what, n := range map[string]int{
		"entries": len(d.entries) - most, "living": len(d.live), "gone": len(d.removed), "hashes": len(d.hashes), "hosts": len(d.hosts),
		"owners": len(d.ownerBytes), "slots": len(d.slots), "order": d.index.Len(),
		"names":      len(slices.Collect(d.index.Texts(index.Name))) / 2,
		"not stored": d.store.Len() - most, "waiting for vectors": d.embeddings.Len(),
	} {
		if n > most {
			t.Errorf("%d %s, at most %d are allowed", n, what, most)
		}
	}
	if d.Stats().Down > 4096 || len(d.changed.log) > maxChanges || d.views.bytes > d.views.most ||
		d.Stats().Refused+d.Stats().Evicted != uint64(2*(*freshKeys-most)) {
		t.Errorf("%d down, %d changes, %d bytes open, %+v", d.Stats().Down, len(d.changed.log), d.views.bytes, d.Stats())
	}
}

// The weighed bytes are about the growth of the heap. The test is not parallel, because it measures the heap of the process.
func TestWeighedBytesMatchTheHeap(t *testing.T) {
	heap := func() int { return int(liveheap.Bytes()) }
	const most, n = 1 << 20, 200
	signed := signAll(t, 0, n)
	before := heap()
	d := openDirectory(t, Options{Bytes: most, Max: 1 << 20, PerOwner: 1 << 20})
	full := 0
	for _, s := range signed {
		desc, _, err := d.open(t.Context(), &td.Signed{Record: s.Record, TD: append([]byte(nil), s.TD...)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.put(desc, received); err != nil {
			wantCode(t, err, interact.Overloaded, "bytes")
			full++
		}
	}
	if weighed := d.Stats().Bytes; weighed > most || weighed < most*9/10 || full == 0 || full > n*3/4 {
		t.Errorf("%d bytes are weighed of %d, %d of %d refused", weighed, most, full, n)
	}
	// Recently used descriptions are additional.
	open := d.views.bytes
	if took, logged := heap()-before, d.changed.bytes; took > most*11/10+logged+open*3/2 {
		t.Errorf("the heap has grown by %d, of which %d may be open, and %d changes; %d are allowed", took, open, logged, most)
	} else {
		t.Logf("heap %d, weighed %d, open %d, %d things", took, d.Stats().Bytes, open, n-full)
	}
	runtime.KeepAlive(d)
	runtime.KeepAlive(signed)
}
