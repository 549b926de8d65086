package publication

import (
	"slices"
	"testing"
	"time"

	ds "github.com/ipfs/go-datastore"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/did/rotation"
	"github.com/lmosd/lmosd/td"
)

// The next key has the same Things with its own signature, the old key has their moves, and each reads the store with the entries of both.
func TestSucceed(t *testing.T) {
	t.Parallel()
	d, next := newFixture(t), didtest.NewKey()
	raw, err := rotation.Sign(rotation.Statement{Network: "lmos", SCID: "Qm", Created: time.Now()}, d.o.Signer, next)
	if err != nil {
		t.Fatal(err)
	}
	pending, err := rotation.Request(t.TempDir(), raw)
	if err != nil {
		t.Fatal(err)
	}
	own := d.publish("Weather", "") // its id contains the DID
	echoed, err := d.Publisher.publish(WithCallers(t.Context(), nil), tool("Echo", "urn:x:echo"), nil, Registration{TTL: 3600})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Publisher.publish(t.Context(), tool("Here", "urn:x:here"), echo, Registration{}); err != nil {
		t.Fatal(err)
	}
	d.publish("Gone", "urn:x:gone")
	d.withdraw("urn:x:gone")
	d.o.CallerSecrets, err = LoadCallerSecrets("")
	if err != nil {
		t.Fatal(err)
	}
	secrets := map[string]string{}
	for _, thing := range []string{own.Thing, "urn:x:echo"} {
		if secrets[thing], err = d.o.CallerSecrets.make(thing, "http://127.0.0.1:8080"); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if n, err := d.Publisher.Succeed(t.Context(), next, true); err != nil || n != 3 {
			t.Fatalf("%d things were withdrawn, %v", n, err)
		}
	}
	for _, thing := range []string{own.Thing, "urn:x:echo", "urn:x:here"} {
		if pub := d.Get(thing); pub == nil || pub.Moved != next.DID() {
			t.Errorf("%s is %+v", thing, pub)
		}
	}
	for thing, of := range map[string]string{"urn:lmos:" + string(next.DID()) + ":weather": own.Thing, "urn:x:echo": "urn:x:echo"} {
		if got := d.o.CallerSecrets.Of(thing, address(t, "http://127.0.0.1:8080/x")); got == "" || got != secrets[of] {
			t.Errorf("the caller secret of %s is %q", thing, got)
		}
	}

	// A process of a key reads what the store has; without the request, entries of another key are an error. moved are the Things of the old key whose
	// withdrawals the directory gets.
	var moved []string
	reads := func(key *keystore.Key, p *rotation.Pending) (all []string, err error) {
		f := fixtureOver(t, key, d.disk.Batching)
		f.o.Rotation = p
		err = f.load(t.Context(), time.Now())
		for _, pub := range f.All() {
			if pub.Description != nil {
				all = append(all, pub.Thing)
				if pub.Description.Record.Owner != key.DID() || pub.Thing == "urn:x:echo" && !pub.Registration.Created.Equal(echoed.Registration.Created) {
					t.Errorf("%s is %+v", pub.Thing, pub)
				}
			}
		}
		moved = nil
		for _, d := range f.dir.added {
			if r := d.Record; r.Owner != key.DID() && r.Kind == td.KindMoved && r.Successor == key.DID() {
				moved = append(moved, r.Thing)
			}
		}
		slices.Sort(all)
		slices.Sort(moved)
		return all, err
	}
	old := d.o.Signer.(*keystore.Key)
	if all, err := reads(old, pending); err != nil || len(all) != 0 {
		t.Errorf("the old key has %q, %v", all, err)
	}
	if _, err := reads(old, nil); err == nil {
		t.Error("entries of another key were ignored without a request")
	}
	if pending, err = pending.Confirm(nil); err != nil {
		t.Fatal(err)
	}
	want := []string{"urn:lmos:" + string(next.DID()) + ":weather", "urn:x:echo"}
	if all, err := reads(next, pending); err != nil || !slices.Equal(all, want) {
		t.Errorf("the new key has %q, %v", all, err)
	}
	if want := []string{own.Thing, "urn:x:echo", "urn:x:here"}; !slices.Equal(moved, want) {
		t.Errorf("the new key repeats the withdrawals of %q, want %q", moved, want)
	}
	if has, err := d.disk.Has(t.Context(), ds.RawKey(storeKey(old.DID(), "urn:x:echo").String())); has || err != nil {
		t.Errorf("an entry of the old key is still there, %v", err)
	}
	if all, err := reads(next, nil); err != nil || !slices.Equal(all, want) {
		t.Errorf("after the end, the new key has %q, %v", all, err)
	}
}
