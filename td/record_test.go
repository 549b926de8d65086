package td

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/internal/cbor"
)

// forge returns a signed record with arbitrary content and a valid signature.
func forge(t testing.TB, k *keystore.Key, change func(w *wireRecord)) []byte {
	t.Helper()
	hash := sha256.Sum256([]byte("td"))
	w := &wireRecord{
		Version: 1, Owner: string(k.DID()), Thing: "urn:example:t", Seq: 5, Issued: uint64(epoch.Unix()),
		Expires: uint64(epoch.Add(time.Hour).Unix()), Hash: hash[:], Size: 2,
		Hosts:        []wireHost{{Node: string(k.DID()), Addrs: []string{"/ip4/192.0.2.7/tcp/4667"}}},
		Capabilities: []string{"a", "urn:b"}, Title: "T", Summary: "S",
	}
	change(w)
	message, err := w.signed()
	if err != nil {
		t.Fatal(err)
	}
	if w.Signature == nil {
		if w.Signature, err = k.Sign(did.PurposeRecord, message); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := cbor.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func makeTombstone(w *wireRecord) { w.Kind, w.Hash, w.Size = 1, nil, 0 }

func TestRecordAccepts(t *testing.T) {
	t.Parallel()
	k, other := signer(t, 1), signer(t, 2)
	tests := []struct {
		name   string
		change func(w *wireRecord)
	}{
		{"an ordinary record", func(*wireRecord) {}},
		{"no hosts, capabilities, texts",
			func(w *wireRecord) { w.Hosts, w.Capabilities, w.Title, w.Summary = nil, nil, "", "" }},
		{"a host without addresses", func(w *wireRecord) { w.Hosts[0].Addrs = nil }},
		{"an id that is the owner", func(w *wireRecord) { w.Thing = string(k.DID()) }},
		{"an id that contains the owner", func(w *wireRecord) { w.Thing = "urn:lmos:" + string(k.DID()) + ":weather" }},
		{"the longest id", func(w *wireRecord) { w.Thing = "urn:" + strings.Repeat("x", MaxID-4) }},
		{"the longest life", func(w *wireRecord) { w.Expires = w.Issued + 24*3600 }},
		{"a tombstone of 30 days", func(w *wireRecord) { makeTombstone(w); w.Expires = w.Issued + 30*24*3600 }},
		{"a final tombstone", func(w *wireRecord) { makeTombstone(w); w.Seq = finalSeq }},
		{"a moved thing", func(w *wireRecord) { makeTombstone(w); w.Kind, w.Successor = 2, string(other.DID()) }},
		{"moved for 30 days", func(w *wireRecord) {
			makeTombstone(w)
			w.Kind, w.Successor, w.Expires = 2, string(other.DID()), w.Issued+30*24*3600
		}},
		{"moved to another method", func(w *wireRecord) { makeTombstone(w); w.Kind, w.Successor = 2, "did:web:example.com" }},
		{"64 capabilities", func(w *wireRecord) { w.Capabilities = manyCapabilities(64) }},
		{"four hosts with four addresses", func(w *wireRecord) { w.Hosts = manyHosts(t, 4, 4) }},
		{"a text of 200 letters outside of ASCII", func(w *wireRecord) { w.Title = strings.Repeat("ü", MaxTitle) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			raw := forge(t, k, tt.change)
			r, err := NewVerifier(nil).Record(raw, epoch)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(r.Raw, raw) || r.Owner != k.DID() || r.Issued != epoch {
				t.Errorf("got %+v", r)
			}
		})
	}
}

func manyCapabilities(n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("urn:example:capability:%03d", i))
	}
	return all
}

func manyHosts(t *testing.T, n, addrs int) []wireHost {
	var all []wireHost
	for i := range n {
		h := wireHost{Node: string(signer(t, byte(10+i)).DID())}
		for a := range addrs {
			h.Addrs = append(h.Addrs, fmt.Sprintf("/ip4/192.0.2.%d/tcp/4667", a))
		}
		all = append(all, h)
	}
	return all
}

func TestRecordRejects(t *testing.T) {
	t.Parallel()
	k, other := signer(t, 1), signer(t, 2)
	tests := []struct {
		name   string
		want   error
		change func(w *wireRecord)
	}{
		{"version 0", ErrMalformed, func(w *wireRecord) { w.Version = 0 }},
		{"a later version", ErrVersion, func(w *wireRecord) { w.Version = 4 }},
		{"a second version without an audience", ErrMalformed, func(w *wireRecord) { w.Version = 2 }},
		{"an audience in the first version", ErrMalformed, func(w *wireRecord) { w.Audience = 1 }},
		{"an unknown audience", ErrMalformed, func(w *wireRecord) { w.Version, w.Audience = 2, 5 }},
		{"no owner", ErrMalformed, func(w *wireRecord) { w.Owner = "" }},
		{"an owner of another method", did.ErrMethod, func(w *wireRecord) { w.Owner = "did:web:example.com" }},
		{"an owner in another spelling", did.ErrInvalid, func(w *wireRecord) { w.Owner += "#key" }},
		{"another owner", ErrSignature, func(w *wireRecord) { w.Owner = string(other.DID()) }},
		{"an id that is another owner", ErrOwner, func(w *wireRecord) { w.Thing = string(other.DID()) }},
		{"a path under another owner", ErrOwner, func(w *wireRecord) { w.Thing = string(other.DID()) + "/weather" }},
		{"an id that contains another owner", ErrOwner,
			func(w *wireRecord) { w.Thing = "urn:lmos:" + string(other.DID()) + ":w" }},
		{"an id that contains another owner, in capitals", ErrOwner, func(w *wireRecord) { w.Thing = "URN:LMOS:" + string(other.DID()) + ":w" }},
		{"no id", ErrMalformed, func(w *wireRecord) { w.Thing = "" }},
		{"an id of 1025 bytes", ErrMalformed, func(w *wireRecord) { w.Thing = strings.Repeat("x", MaxID+1) }},
		{"a line break in the id", ErrMalformed, func(w *wireRecord) { w.Thing = "urn:a\nb" }},
		{"no time", ErrMalformed, func(w *wireRecord) { w.Issued = 0 }},
		{"expires when issued", ErrMalformed, func(w *wireRecord) { w.Expires = w.Issued }},
		{"a life of a day and a second", ErrMalformed, func(w *wireRecord) { w.Expires = w.Issued + 24*3600 + 1 }},
		{"a tombstone of more than 30 days", ErrMalformed,
			func(w *wireRecord) { makeTombstone(w); w.Expires = w.Issued + 30*24*3600 + 1 }},
		{"the end of time", ErrMalformed, func(w *wireRecord) { w.Issued, w.Expires = 1<<63, 1<<63+1 }},
		{"kind 3", ErrMalformed, func(w *wireRecord) { makeTombstone(w); w.Kind = 3 }},
		{"no hash", ErrMalformed, func(w *wireRecord) { w.Hash = nil }},
		{"a hash of 31 bytes", ErrMalformed, func(w *wireRecord) { w.Hash = w.Hash[:31] }},
		{"a TD of nothing", ErrMalformed, func(w *wireRecord) { w.Size = 0 }},
		{"a TD over the limit", ErrMalformed, func(w *wireRecord) { w.Size = MaxTD + 1 }},
		{"a tombstone with a TD", ErrMalformed, func(w *wireRecord) { w.Kind = 1 }},
		{"a tombstone with a TD inside", ErrMalformed, func(w *wireRecord) { makeTombstone(w); w.Inline = []byte{1} }},
		{"moved without a successor", ErrMalformed, func(w *wireRecord) { makeTombstone(w); w.Kind = 2 }},
		{"moved to nonsense", ErrMalformed, func(w *wireRecord) { makeTombstone(w); w.Kind, w.Successor = 2, "somewhere" }},
		{"a successor in a record of another kind", ErrMalformed, func(w *wireRecord) { w.Successor = string(other.DID()) }},
		{"the last seq without a tombstone", ErrMalformed, func(w *wireRecord) { w.Seq = finalSeq }},
		{"65 capabilities", ErrMalformed, func(w *wireRecord) { w.Capabilities = manyCapabilities(65) }},
		{"a capability of 257 bytes", ErrMalformed,
			func(w *wireRecord) { w.Capabilities = []string{strings.Repeat("x", 257)} }},
		{"a capability in capitals", ErrMalformed, func(w *wireRecord) { w.Capabilities = []string{"A"} }},
		{"capabilities out of order", ErrMalformed, func(w *wireRecord) { w.Capabilities = []string{"b", "a"} }},
		{"a capability twice", ErrMalformed, func(w *wireRecord) { w.Capabilities = []string{"a", "a"} }},
		{"five hosts", ErrMalformed, func(w *wireRecord) { w.Hosts = manyHosts(t, 5, 1) }},
		{"five addresses", ErrMalformed, func(w *wireRecord) { w.Hosts = manyHosts(t, 1, 5) }},
		{"a host twice", ErrMalformed, func(w *wireRecord) { w.Hosts = append(w.Hosts, w.Hosts[0]) }},
		{"a host that is not a did:key", ErrMalformed, func(w *wireRecord) { w.Hosts[0].Node = "did:web:example.com" }},
		{"an empty address", ErrMalformed, func(w *wireRecord) { w.Hosts[0].Addrs = []string{""} }},
		{"an invalid address", ErrMalformed, func(w *wireRecord) { w.Hosts[0].Addrs = []string{"http://x"} }},
		{"an address with a space", ErrMalformed, func(w *wireRecord) { w.Hosts[0].Addrs = []string{"/dns/a b"} }},
		{"an address of 257 bytes", ErrMalformed,
			func(w *wireRecord) { w.Hosts[0].Addrs = []string{"/" + strings.Repeat("x", 256)} }},
		{"a title of 201 letters", ErrMalformed, func(w *wireRecord) { w.Title = strings.Repeat("ü", MaxTitle+1) }},
		{"an escape sequence in the title", ErrMalformed, func(w *wireRecord) { w.Title = "\x1b[31mred" }},
		{"a summary of 401 letters", ErrMalformed,
			func(w *wireRecord) { w.Summary = strings.Repeat("x", MaxDescription+1) }},
		{"a TD inside over the limit", ErrMalformed, func(w *wireRecord) { w.Inline = make([]byte, MaxInline+1) }},
		{"a TD inside that is not a zstd frame", ErrHash, func(w *wireRecord) { w.Inline = []byte("td") }},
		{"another TD inside", ErrHash, func(w *wireRecord) { w.Inline = compressTD([]byte("xx")) }},
		{"a longer TD inside", ErrHash, func(w *wireRecord) { w.Inline = compressTD(bytes.Repeat([]byte("td"), 50_000)) }},
		{"a signature of 63 bytes", ErrMalformed, func(w *wireRecord) { w.Signature = make([]byte, 63) }},
		{"a signature of nothing", ErrSignature, func(w *wireRecord) { w.Signature = make([]byte, 64) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := NewVerifier(nil).Record(forge(t, k, tt.change), epoch)
			if !errors.Is(err, tt.want) {
				t.Errorf("got %+v, %v; want %v", r, err, tt.want)
			}
		})
	}
}

// A signature of the same bytes for another purpose is not a signature of a record, because the domain strings differ.
func TestRecordSignatureHasItsDomain(t *testing.T) {
	t.Parallel()
	k := signer(t, 1)
	raw := forge(t, k, func(w *wireRecord) {
		message, err := w.signed()
		if err != nil {
			t.Fatal(err)
		}
		if w.Signature, err = k.Sign(did.PurposeAssertion, bytes.Repeat(message, 64)[:64]); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := NewVerifier(nil).Record(raw, epoch); !errors.Is(err, ErrSignature) {
		t.Errorf("got %v, want %v", err, ErrSignature)
	}
}

func TestRecordRejectsOtherEncodings(t *testing.T) {
	t.Parallel()
	good := forge(t, signer(t, 1), func(*wireRecord) {})
	if good[0] != 0xae || !bytes.Equal(good[1:3], []byte{0, 1}) { // a map of 14 pairs, the version first
		t.Fatalf("the record begins with %x", good[:3])
	}
	insert := func(at int, b ...byte) []byte {
		return append(append(bytes.Clone(good[:at]), b...), good[at:]...)
	}
	longer := bytes.Clone(good)
	longer[0]++
	tests := []struct {
		name string
		raw  []byte
		want error
	}{
		{"nothing", nil, ErrMalformed},
		{"garbage", []byte("garbage"), ErrMalformed},
		{"an array", []byte{0x80}, ErrMalformed},
		{"half of it", good[:len(good)/2], ErrMalformed},
		{"a byte after it", insert(len(good), 0), ErrMalformed},
		{"a length that is not the shortest", append([]byte{0xb8, 0x0e}, good[1:]...), ErrMalformed},
		{"a number that is not the shortest", append([]byte{0xae, 0, 0x18, 1}, good[3:]...), ErrMalformed},
		{"an indefinite map", append(append([]byte{0xbf}, good[1:]...), 0xff), ErrMalformed},
		{"an unknown key", append(append([]byte{longer[0]}, good[1:]...), 0x10, 0), ErrMalformed},
		{"a duplicate key", append(append([]byte{longer[0]}, 0, 1), good[1:]...), ErrMalformed},
		{"a text key", append(append([]byte{longer[0]}, good[1:]...), 0x61, 'x', 0), ErrMalformed},
		{"null instead of a text", bytes.Replace(good, []byte{0x0b, 0x61, 'T'}, []byte{0x0b, 0xf6}, 1), ErrMalformed},
		{"an empty text instead of none", bytes.Replace(good, []byte{0x0b, 0x61, 'T'}, []byte{0x0b, 0x60}, 1),
			ErrMalformed},
		{"a tag", append([]byte{0xc0}, good...), ErrMalformed},
		{"more than the limit", append(bytes.Clone(good), make([]byte, MaxRecord)...), ErrTooLarge},
		{"a later version with keys of its own", []byte{0xa2, 0, 4, 0x18, 99, 0xf5}, ErrVersion},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if _, err := NewVerifier(nil).Record(tt.raw, epoch); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if _, err := Select([][]byte{tt.raw}); err == nil {
				t.Error("Select accepted it")
			}
		})
	}
}

// Every byte of a record is bound by the signature, by the unique encoding, or, in the compressed TD, by the hash of the TD. A bit of the
// compression frame may change the form of the compression only; the content is then the same.
func TestEveryByteOfARecord(t *testing.T) {
	t.Parallel()
	raw := published(t, readFile(t, "weather.td.json"), signer(t, 1), 7).Record
	v := NewVerifier(nil)
	good, err := v.Record(bytes.Clone(raw), epoch)
	if err != nil {
		t.Fatal(err)
	}
	for i := range raw {
		for _, flip := range []byte{0x01, 0x20, 0x80, 0xff} {
			raw[i] ^= flip
			if r, err := v.Record(raw, epoch); err == nil && (r.digest != good.digest || len(r.Inline) != len(good.Inline)) {
				t.Fatalf("byte %d ^ %#x accepted: %+v", i, flip, r)
			}
			raw[i] ^= flip
		}
	}
}

func TestRecordTimes(t *testing.T) {
	t.Parallel()
	raw := forge(t, signer(t, 1), func(*wireRecord) {}) // from epoch for an hour
	v := NewVerifier(nil)
	tests := []struct {
		name string
		at   time.Duration
		want error
	}{
		{"long before it was issued", -time.Hour, ErrFuture},
		{"more than five minutes before", -5*time.Minute - time.Second, ErrFuture},
		{"five minutes before", -5 * time.Minute, nil},
		{"when it was issued", 0, nil},
		{"when it expires", time.Hour, nil},
		{"five minutes after it expired", time.Hour + 5*time.Minute, nil},
		{"more than five minutes after", time.Hour + 5*time.Minute + time.Second, ErrExpired},
	}
	for _, tt := range tests { // the result of the signature check is cached, that of the time check is not
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if _, err := v.Record(raw, epoch.Add(tt.at)); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func TestKey(t *testing.T) {
	t.Parallel()
	got := Key("did:key:a", "urn:b")
	if want := sha256.Sum256([]byte("did:key:a\x00urn:b")); got != want {
		t.Errorf("got %x, want %x", got, want)
	}
	if Key("did:key:a", "b") == Key("did:key:", "ab") {
		t.Error("the key does not separate owner and id")
	}
	r := &Record{Owner: "did:key:a", Thing: "urn:b"}
	if r.Key() != got {
		t.Error("the key of the record differs")
	}
}

// TestGolden checks the wire format: the bytes of a record with every field, and of a tombstone, for a fixed key. Other nodes cannot read a
// changed format, so a change of these files needs a new version.
func TestGolden(t *testing.T) {
	t.Parallel()
	k := signer(t, 1)
	tombstone, err := SignTombstone(k, "urn:example:agent:weather", lease(8), true, "urn:example:weather:forecast")
	if err != nil {
		t.Fatal(err)
	}
	signed := published(t, readFile(t, "weather.td.json"), k, 7)
	bare, err := signed.WithoutTD()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "weather.signed.td.json", signed.TD)
	golden(t, "record.hex", []byte(hex.EncodeToString(bare.Record)+"\n"))
	golden(t, "tombstone.hex", []byte(hex.EncodeToString(tombstone.Record)+"\n"))
}

// golden compares got with a file, or writes it if the test runs with UPDATE_GOLDEN=1.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		if err := os.WriteFile("testdata/"+name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want := readFile(t, name); !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

// TestGoldenInline reads a compressed TD of an earlier version. The encoder may change, but each later decoder must read it.
func TestGoldenInline(t *testing.T) {
	t.Parallel()
	raw, err := hex.DecodeString(strings.TrimSpace(string(readFile(t, "inline.hex"))))
	if err != nil {
		t.Fatal(err)
	}
	d := verified(t, &Signed{Record: raw})
	if !bytes.Equal(d.Raw, readFile(t, "weather.signed.td.json")) {
		t.Error("the TD inside differs")
	}
}

// The dictionary is part of the record format.
func TestDictionaryNeverChanges(t *testing.T) {
	t.Parallel()
	const want = "0c3add98d0a159b2ac6ef794adda86b7fb93b04462e7341cfa64527238009a7b"
	if got := fmt.Sprintf("%x", sha256.Sum256(dictionary)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestInlineWithoutDictionaryIsRead(t *testing.T) {
	t.Parallel()
	// "td" as a raw block in a frame of one segment (RFC 8878 §3.1.1).
	frame := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x20, 2, 0x11, 0, 0, 't', 'd'}
	raw := forge(t, signer(t, 1), func(w *wireRecord) { w.Inline = frame })
	if _, err := NewVerifier(nil).Record(raw, epoch); err != nil {
		t.Error(err)
	}
}

// A small frame that would decompress to more than it declares costs only the declared size.
func TestInlineBombIsCheap(t *testing.T) { // not parallel: it measures memory
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithSingleSegment(true))
	if err != nil {
		t.Fatal(err)
	}
	bomb := e.EncodeAll(make([]byte, 64<<20), nil)
	if len(bomb) > MaxInline {
		t.Fatal("the bomb does not fit into a record")
	}
	r := &Record{Thing: "urn:x", Size: 2, Inline: bomb}
	unpack := func() {
		if _, err := r.decompressTD(); !errors.Is(err, ErrHash) {
			t.Fatalf("got %v", err)
		}
	}
	unpack() // creates the decoder
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	unpack()
	runtime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 512<<10 {
		t.Errorf("%d bytes allocated", allocated)
	}
}

func TestSizes(t *testing.T) {
	t.Parallel()
	s := published(t, readFile(t, "weather.td.json"), signer(t, 1), 7)
	bare, err := s.WithoutTD()
	if err != nil {
		t.Fatal(err)
	}
	if len(s.TD) < 4000 || len(s.Record) > 1536 || len(bare.Record) > 600 {
		t.Errorf("a TD of %d bytes makes a record of %d with it, and of %d without it; want at most 1536 and 600",
			len(s.TD), len(s.Record), len(bare.Record))
	}
}
