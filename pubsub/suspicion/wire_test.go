package suspicion

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/lmosd/lmosd/internal/cbor"
)

func TestDecode(t *testing.T) {
	t.Parallel()
	keys := func(order ...int) (all []byte) {
		for _, i := range order {
			k, err := failedHost(t, i).Key()
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, k...)
		}
		return all
	}
	low, high := 0, 1
	if bytes.Compare(keys(low), keys(high)) > 0 {
		low, high = high, low
	}
	for _, c := range []struct {
		name string
		m    any
		want int
	}{
		{"one", message{keys(low)}, 1},
		{"two", message{keys(low, high)}, 2},
		{"none", message{}, 0},
		{"two that descend", message{keys(high, low)}, 0},
		{"one twice", message{keys(low, low)}, 0},
		{"half a key", message{keys(low)[:16]}, 0},
		{"a key of small order", message{make([]byte, keySize)}, 0},
		{"another member", map[string]any{"suspects": keys(low), "by": 1}, 0},
		{"text", "text", 0},
		{"a list", map[string]any{"suspects": []string{"x"}}, 0},
	} {
		b, err := cbor.Marshal(c.m)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := decode(b); len(got) != c.want || (err != nil) != (c.want == 0) || err != nil && !errors.Is(err, errMalformed) {
			t.Errorf("%s: got %d hosts, %v", c.name, len(got), err)
		}
	}
	for n, ok := range map[int]bool{maxHosts: true, maxHosts + 1: false} {
		b := message1(t, several(t, n)...)
		if got, err := decode(b); (err == nil) != ok || ok && (len(got) != n || len(b) > maxMessage) {
			t.Errorf("%d hosts in %d bytes: got %d, %v", n, len(b), len(got), err)
		}
	}
	if _, err := encode(append(several(t, 1), "did:web:example.com")); err == nil {
		t.Error("a host without a key was encoded")
	}
}

func FuzzMessage(f *testing.F) {
	f.Add(message1(f, several(f, 1)...))
	f.Add(message1(f, several(f, 3)...))
	f.Add([]byte("\xa1\x68suspects\x40"))
	f.Fuzz(func(t *testing.T, b []byte) {
		hosts, err := decode(b)
		if err != nil {
			return
		}
		again, err := encode(slices.Clone(hosts))
		if err != nil || !bytes.Equal(again, b) || len(hosts) > maxHosts || len(b) > maxMessage {
			t.Errorf("%x was decoded, and encodes as %x (%v)", b, again, err)
		}
	})
}
