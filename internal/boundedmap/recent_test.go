package boundedmap

import "testing"

func TestRecent(t *testing.T) {
	t.Parallel()
	r := Recent[int, string]{Size: 3}
	if v, ok := r.Get(1); ok || v != "" {
		t.Errorf("an empty map has %q", v)
	}
	for i := range 100 {
		r.Put(i, "v")
		if v, ok := r.Get(0); !ok || v != "v" {
			t.Fatalf("the key in use was dropped after %d others", i)
		}
		if n := r.Len(); n > 6 {
			t.Fatalf("%d keys", n)
		}
		for k := max(0, i-1); k <= i; k++ { // with key 0 the three used last
			if _, ok := r.Get(k); !ok {
				t.Fatalf("key %d of %d is missing", k, i)
			}
		}
	}
	if _, ok := r.Get(1); ok {
		t.Error("an unused key is still there")
	}
	r.Put(0, "w")
	if v, _ := r.Get(0); v != "w" {
		t.Errorf("got %q, want the new value", v)
	}
}
