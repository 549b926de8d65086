package did

import (
	"crypto/ed25519"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

// weakKeys are the 14 encodings of the eight points of small order, by order.
var weakKeys = map[string]string{
	"order 1":                         "01" + strings.Repeat("00", 31),
	"order 1, sign bit":               "01" + strings.Repeat("00", 30) + "80",
	"order 1, not reduced":            "ee" + strings.Repeat("ff", 30) + "7f",
	"order 1, not reduced, sign bit":  "ee" + strings.Repeat("ff", 31),
	"order 2":                         "ec" + strings.Repeat("ff", 30) + "7f",
	"order 2, sign bit":               "ec" + strings.Repeat("ff", 31),
	"order 4":                         strings.Repeat("00", 32),
	"order 4, other sign":             strings.Repeat("00", 31) + "80",
	"order 4, not reduced":            "ed" + strings.Repeat("ff", 30) + "7f",
	"order 4, not reduced other sign": "ed" + strings.Repeat("ff", 31),
	"order 8, a":                      "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
	"order 8, b":                      "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
	"order 8, c":                      "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
	"order 8, d":                      "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
}

func TestWeakKeysAreRejected(t *testing.T) {
	t.Parallel()
	for name, text := range weakKeys {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key, err := hex.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			rejectEverywhere(t, key)
		})
	}
}

// rejectEverywhere checks that all functions of the package reject key.
func rejectEverywhere(t *testing.T, key []byte) {
	t.Helper()
	d := fromChecked(key)
	peer := append([]byte(peerPrefix), key...)
	multibase := d.Multibase()
	for name, err := range map[string]error{
		"CheckKey":  CheckKey(key),
		"FromKey":   second(FromKey(key)),
		"Parse":     second(Parse(string(d))),
		"Key":       second(d.Key()),
		"Peer":      second(d.Peer()),
		"FromPeer":  second(FromPeer(peer)),
		"ParseURL":  second(ParseURL(string(d) + "#" + multibase)),
		"Agreement": second(Agreement(key)),
		"Multikey": second(ParseDocument([]byte(`{"id":"did:web:a.example","verificationMethod":[{"id":"#k","type":"Multikey",`+
			`"controller":"did:web:a.example","publicKeyMultibase":"`+multibase+`"}]}`), "")),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestMalformedKeysAreRejected(t *testing.T) {
	t.Parallel()
	// No point of the curve has the y-coordinate 2.
	undecodable := append([]byte{2}, make([]byte, 31)...)
	rejectEverywhere(t, undecodable)
	for _, n := range []int{0, 31, 33} {
		if err := CheckKey(make([]byte, n)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

func TestKeyOfOtherMethods(t *testing.T) {
	t.Parallel()
	for _, d := range []DID{"", "did:web:example.com", "did:key:z6LSgTMiVvjkfQd8CF1kWasYZKBqtAYf6h8TC3yDfjPgDbWQ"} {
		if _, err := d.Key(); !errors.Is(err, ErrMethod) {
			t.Errorf("Key of %q: %v, want ErrMethod", d, err)
		}
		if _, err := d.Peer(); !errors.Is(err, ErrMethod) {
			t.Errorf("Peer of %q: %v, want ErrMethod", d, err)
		}
		if got := d.PeerText(); got != "" {
			t.Errorf("PeerText of %q = %q", d, got)
		}
	}
	if _, err := DID("did:key:z6Mk!").Key(); !errors.Is(err, ErrInvalid) {
		t.Errorf("Key of an unchecked text: %v, want ErrInvalid", err)
	}
}

func TestKeyCacheIsBounded(t *testing.T) {
	t.Parallel()
	var cache keyCache
	key := func(n int) (k [32]byte) {
		binary.BigEndian.PutUint64(k[:], uint64(n))
		return k
	}
	for n := range 10 * generationSize {
		cache.add(key(n))
		if !cache.has(key(0)) {
			t.Fatalf("the key in use was dropped after %d others", n)
		}
		if size := len(cache.recent) + len(cache.older); size > 2*generationSize {
			t.Fatalf("%d keys are cached", size)
		}
	}
	if cache.has(key(1)) {
		t.Error("an unused key is still cached")
	}
}

func TestWeakKeysAreNotCached(t *testing.T) {
	t.Parallel()
	weak := [32]byte{1}
	for range 2 {
		if err := CheckKey(weak[:]); err == nil {
			t.Fatal("accepted")
		}
	}
	if validKeys.has(weak) {
		t.Error("a weak key is cached as valid")
	}
}

func TestCachedCheckDoesNotAllocate(t *testing.T) {
	pub := ed25519.NewKeyFromSeed(make([]byte, 32)).Public().(ed25519.PublicKey)
	if n := testing.AllocsPerRun(100, func() { _ = CheckKey(pub) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestBase58(t *testing.T) {
	t.Parallel()
	for _, b := range [][]byte{{0}, {0, 0, 1}, []byte("Hello World!")} {
		got, err := DecodeBase58(EncodeBase58(b))
		if err != nil || string(got) != string(b) {
			t.Errorf("%x decoded as %x, %v", b, got, err)
		}
	}
	if got := EncodeBase58([]byte("Hello World!")); got != "z2NEpo7TZRRrLZSi2U" { // Base58 draft §5
		t.Errorf("got %s", got)
	}
	for _, s := range []string{"", "z", "2NEpo7", "z0", "zé", "z" + strings.Repeat("2", MaxLength)} {
		if b, err := DecodeBase58(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("DecodeBase58(%q) = %x, %v", s, b, err)
		}
	}
}

var benchKey = ed25519.NewKeyFromSeed(make([]byte, 32)).Public().(ed25519.PublicKey)

func BenchmarkFromPeer(b *testing.B) {
	id := append([]byte(peerPrefix), benchKey...)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := FromPeer(id); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPeer(b *testing.B) {
	d := fromChecked(benchKey)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Peer(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCheckKey(b *testing.B) {
	b.Run("cached", func(b *testing.B) {
		for b.Loop() {
			_ = CheckKey(benchKey)
		}
	})
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			_ = checkPoint(benchKey)
		}
	})
}

func BenchmarkResolveKey(b *testing.B) {
	d := fromChecked(benchKey)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Keys().Resolve(b.Context(), d); err != nil {
			b.Fatal(err)
		}
	}
}
