package ucan

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
)

// use returns the nth use, by an issuer, that lasts a minute.
func use(n int, issuer did.DID) Use {
	u := Use{Issuer: issuer, Until: noon.Add(time.Minute)}
	binary.BigEndian.PutUint64(u.Invocation[:], uint64(n))
	return u
}

func TestReplay(t *testing.T) {
	t.Parallel()
	var r Replay
	checkReason(t, r.Add(use(1, id(alice)), noon), "")
	checkReason(t, r.Add(use(1, id(alice)), noon), Replayed)
	checkReason(t, r.Add(use(1, id(bob)), noon), Replayed) // the CID counts
	checkReason(t, r.Add(use(2, id(alice)), noon.Add(59*time.Second)), "")
	checkReason(t, r.Add(use(1, id(alice)), noon.Add(time.Minute)), "") // it has expired, as the token then
	if live := r.Live(noon.Add(59 * time.Second)); len(live) != 1 {
		t.Errorf("live: %v", live)
	}
}

func TestReplayIsBoundedPerIssuer(t *testing.T) {
	t.Parallel()
	var r Replay
	by := id(alice)
	for n := range maxUsesPerIssuer {
		if err := r.Add(use(n, by), noon); err != nil {
			t.Fatal(n, err)
		}
	}
	checkReason(t, r.Add(use(-1, id(alice)), noon), TooMany)
	checkReason(t, r.Add(use(1, id(alice)), noon), Replayed) // none was evicted
	checkReason(t, r.Add(use(-1, id(bob)), noon), "")
	checkReason(t, r.Add(use(-2, id(alice)), noon.Add(time.Minute)), "")
	if len(r.used) != 1 || len(r.issuers) != 1 || len(r.queue) != 1 {
		t.Errorf("%d uses, %d issuers, %d entries are left", len(r.used), len(r.issuers), len(r.queue))
	}
}

func TestReplayIsBounded(t *testing.T) {
	t.Parallel()
	var r Replay
	at := func(n int) Use {
		return use(n, did.DID(fmt.Sprint("did:example:", n/maxUsesPerIssuer)))
	}
	for n := range maxUses {
		if err := r.Add(at(n), noon); err != nil {
			t.Fatal(n, err)
		}
	}
	checkReason(t, r.Add(at(maxUses), noon), TooMany)
	checkReason(t, r.Add(at(maxUses-1), noon), Replayed)
	checkReason(t, r.Add(at(maxUses), noon.Add(time.Minute)), "")
}

func TestReplayAfterARestart(t *testing.T) {
	t.Parallel()
	var before, after Replay
	long := use(2, id(alice))
	long.Until = noon.Add(time.Hour)
	checkReason(t, before.Add(use(1, id(alice)), noon), "")
	checkReason(t, before.Add(long, noon), "")
	stored, err := json.Marshal(before.Live(noon))
	if err != nil {
		t.Fatal(err)
	}
	var uses []Use
	if err := json.Unmarshal(stored, &uses); err != nil || len(uses) != 2 {
		t.Fatal(uses, err)
	}
	now := noon.Add(2 * time.Minute)
	after.Restore(append(uses, uses...), now)
	checkReason(t, after.Add(long, now), Replayed)
	if live := after.Live(now); len(live) != 1 || live[0] != long {
		t.Errorf("live: %+v", live)
	}
}

// One of many concurrent uses of a token succeeds.
func TestReplayOnce(t *testing.T) {
	t.Parallel()
	var r Replay
	var wg sync.WaitGroup
	errs := make([]error, 50)
	for n := range errs {
		wg.Go(func() { errs[n] = r.Add(use(1, id(alice)), noon) })
	}
	wg.Wait()
	ok := 0
	for _, err := range errs {
		if err == nil {
			ok++
		} else if !errors.Is(err, Replayed) {
			t.Error(err)
		}
	}
	if ok != 1 {
		t.Errorf("%d of %d succeeded", ok, len(errs))
	}
}
