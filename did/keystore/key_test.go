package keystore

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
)

// seed is the seed of the test key. No output may contain one of its spellings.
var seed = sha256.Sum256([]byte("a seed for tests"))

func newKey(t testing.TB) *Key {
	t.Helper()
	k, err := FromSeed(seed)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestFromSeed(t *testing.T) {
	t.Parallel()
	k, err := FromSeed([32]byte{})
	if err != nil {
		t.Fatal(err)
	}
	if k.DID() != "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp" {
		t.Errorf("DID %s", k.DID())
	}
	if got := hex.EncodeToString(k.Peer()); got != "002408011220"+hex.EncodeToString(k.Public()) {
		t.Errorf("PeerID %s", got)
	}
	if d, err := did.FromKey(k.Public()); err != nil || d != k.DID() {
		t.Errorf("public key of %s, %v", d, err)
	}
}

func TestPublicIsACopy(t *testing.T) {
	t.Parallel()
	k := newKey(t)
	clear(k.Public())
	if d, err := did.FromKey(k.Public()); err != nil || d != k.DID() {
		t.Errorf("the key changed: %s, %v", d, err)
	}
}

func TestLibp2pReadsTheKey(t *testing.T) {
	t.Parallel()
	k := newKey(t)
	raw := k.Libp2p()
	if len(raw) != 68 || !bytes.HasPrefix(raw, []byte{8, 1, 0x12, 0x40}) {
		t.Fatalf("%d bytes", len(raw))
	}
	priv, err := crypto.UnmarshalPrivateKey(raw)
	if err != nil {
		t.Fatal(err)
	}
	id, err := peer.IDFromPrivateKey(priv)
	if err != nil || string(id) != string(k.Peer()) || id.String() != k.DID().PeerText() {
		t.Errorf("PeerID %s, %v; want %x", id, err, k.Peer())
	}
}

func TestNoFormatPrintsTheKey(t *testing.T) {
	t.Parallel()
	k := newKey(t)
	type holder struct {
		Key    *Key
		hidden *Key
		value  Key
		any    any
	}
	h := holder{k, k, *k, k}
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%b", "%t", "%c", "%U", "%e", "%20v", "%-+v"} {
		for _, v := range []any{k, *k, h, &h, []*Key{k}, []Key{*k}, map[string]any{"k": k}, struct{ k Key }{*k}} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
	}
	for _, v := range []any{k, *k, h, &h, map[string]any{"k": k}} {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(text)
	}
	for _, handler := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(handler).Info("key", "pointer", k, "value", *k, "in", h, "group", slog.GroupValue(slog.Any("k", k)))
	}
	fmt.Fprintln(&out, fmt.Errorf("wrapped: %v, %w", k, fmt.Errorf("%#v", *k)))
	checkHidesKey(t, out.String())
	if !strings.Contains(out.String(), string(k.DID())) {
		t.Error("the output does not have the DID: the test has no effect")
	}
}

// checkHidesKey fails if text has the seed in a spelling that Go prints.
func checkHidesKey(t *testing.T, text string) {
	t.Helper()
	decimal := strings.Trim(fmt.Sprint(seed[:8]), "[]")
	goSyntax := strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%#v", seed[:8]), "[]byte{"), "}")
	for name, form := range map[string]string{
		"raw":       string(seed[:8]),
		"hex":       hex.EncodeToString(seed[:8]),
		"HEX":       strings.ToUpper(hex.EncodeToString(seed[:8])),
		"base64":    base64.StdEncoding.EncodeToString(seed[:])[:12],
		"base64url": base64.RawURLEncoding.EncodeToString(seed[:])[:12],
		"base58":    did.EncodeBase58(seed[:])[1:],
		"decimal":   decimal,
		"commas":    strings.ReplaceAll(decimal, " ", ","),
		"Go syntax": goSyntax,
	} {
		if strings.Contains(text, form) {
			t.Errorf("the text has the seed as %s", name)
		}
	}
}

func TestPrintedForms(t *testing.T) {
	t.Parallel()
	k := newKey(t)
	id := string(k.DID())
	for format, want := range map[string]string{
		"%v": id, "%+v": id, "%s": id, "%x": id, "%#v": "keystore.Key(" + id + ")",
	} {
		if got := fmt.Sprintf(format, k); got != want {
			t.Errorf("%s: %s, want %s", format, got, want)
		}
		if got := fmt.Sprintf(format, *k); got != want {
			t.Errorf("%s of the value: %s, want %s", format, got, want)
		}
	}
	if text, err := json.Marshal(k); err != nil || string(text) != `"`+id+`"` {
		t.Errorf("JSON %s, %v", text, err)
	}
	if got := k.LogValue().String(); got != id {
		t.Errorf("log value %s", got)
	}
}

// hashes returns hash data in the form of package proof.
func hashes(text string) []byte {
	a, b := sha256.Sum256([]byte(text)), sha256.Sum256([]byte(text+"2"))
	return append(a[:], b[:]...)
}

func TestSignaturesByPurpose(t *testing.T) {
	t.Parallel()
	k := newKey(t)
	for _, c := range []struct {
		name    string
		purpose did.Purpose
		msg     []byte
		signed  []byte
	}{
		{"hash data as it is", did.PurposeAssertion, hashes("x"), hashes("x")},
		{"record after its domain", did.PurposeRecord, []byte("\xa1\x01\x02"), []byte("lmos-td-v1:\xa1\x01\x02")},
		{"record of 64 bytes", did.PurposeRecord, hashes("x"), append([]byte("lmos-td-v1:"), hashes("x")...)},
		{"checkpoint after its domain", did.PurposeAudit, []byte(`{"n":7`), []byte(`lmos-audit-v1:{"n":7`)},
		{"addresses after their domain", did.PurposeNode, []byte("\xa1\x01\x02"), []byte("lmos-node-v1:\xa1\x01\x02")},
		{"rotation after its domain", did.PurposeRotation, []byte("\xa1\x01\x02"), []byte("lmos-rotate-v1:\xa1\x01\x02")},
		{"invitation after its domain", did.PurposeInvitation, []byte("\xa1\x01\x02"), []byte("lmos-invite-v1:\xa1\x01\x02")},
	} {
		msg := bytes.Clone(c.msg)
		sig, err := k.Sign(c.purpose, msg)
		if err != nil || !ed25519.Verify(k.Public(), c.signed, sig) {
			t.Errorf("%s: %x, %v", c.name, sig, err)
		}
		if !bytes.Equal(msg, c.msg) {
			t.Errorf("%s: the message was changed", c.name)
		}
	}
}

func TestSignRejects(t *testing.T) {
	t.Parallel()
	k := newKey(t)
	pad := func(s string) []byte { return append([]byte(s), hashes("x")[len(s):]...) }
	text := []byte(strings.Repeat("eyJhbGciOiJFZERTQSJ9.", 4))[:64]
	for _, c := range []struct {
		name    string
		purpose did.Purpose
		msg     []byte
	}{
		{"no purpose", "", hashes("x")},
		{"unknown purpose", "authentication", hashes("x")},
		{"purpose in capitals", "AssertionMethod", hashes("x")},
		{"record domain without its colon", "lmos-td-v1", []byte("x")},
		{"no hash data", did.PurposeAssertion, nil},
		{"63 bytes of hash data", did.PurposeAssertion, hashes("x")[:63]},
		{"65 bytes of hash data", did.PurposeAssertion, append(hashes("x"), 0)},
		{"one hash", did.PurposeAssertion, hashes("x")[:32]},
		{"hash data that is a record", did.PurposeAssertion, pad("lmos-td-v1:")},
		{"hash data that is a checkpoint", did.PurposeAssertion, pad(did.PurposeAudit)},
		{"hash data that is an invitation", did.PurposeAssertion, pad(did.PurposeInvitation)},
		{"hash data that is a rotation", did.PurposeAssertion, pad(did.PurposeRotation)},
		{"hash data that is the addresses of a node", did.PurposeAssertion, pad(did.PurposeNode)},
		{"hash data that is a grant", did.PurposeAssertion, pad(did.PurposeGrant)},
		{"hash data that is a Noise handshake", did.PurposeAssertion, pad("noise-libp2p-static-key:")},
		{"hash data that is a TLS handshake", did.PurposeAssertion, pad("libp2p-tls-handshake:")},
		{"hash data that is gossip", did.PurposeAssertion, pad("libp2p-pubsub:")},
		{"hash data that is an envelope", did.PurposeAssertion, pad("\x12libp2p-peer-record")},
		{"hash data that is a JSON Web Signature", did.PurposeAssertion, text},
		{"hash data that is an HTTP signature", did.PurposeAssertion, []byte(strings.Repeat("\"@method\": GET\n\"@path\": /\n", 3))[:64]},
		{"a card that is a JWT", did.PurposeCard, []byte("eyJhbGciOiJFZERTQSIsInR5cCI6IkpXVCJ9.e30")},
		{"a card of one part", did.PurposeCard, []byte(base64.RawURLEncoding.EncodeToString([]byte(cardHeader + `"}`)))},
		{"a card that is not an object", did.PurposeCard, []byte(base64.RawURLEncoding.EncodeToString([]byte(cardHeader+`"}`)) + ".MQ")},
		{"empty record", did.PurposeRecord, nil},
		{"record as long as hash data", did.PurposeRecord, make([]byte, 64-len("lmos-td-v1:"))},
		{"empty checkpoint", did.PurposeAudit, nil},
		{"checkpoint that is not an object", did.PurposeAudit, []byte("[1]")},
		{"checkpoint as long as hash data", did.PurposeAudit, append([]byte("{"), make([]byte, 63-len(did.PurposeAudit))...)},
		{"empty rotation", did.PurposeRotation, nil},
		{"rotation that is not a map", did.PurposeRotation, []byte("{}")},
		{"rotation as long as hash data", did.PurposeRotation, append([]byte{0xa1}, make([]byte, 63-len(did.PurposeRotation))...)},
		{"empty invitation", did.PurposeInvitation, nil},
		{"invitation that is not a map", did.PurposeInvitation, []byte("\x81\x01")},
		{"invitation with a long map", did.PurposeInvitation, []byte("\xb8\x18")},
		{"empty UCAN", did.PurposeUCAN, nil},
		{"UCAN with another tag", did.PurposeUCAN, []byte(ucanStart + "rct@1.0.0\xa0")},
		{"UCAN with another header", did.PurposeUCAN, []byte("\xa2\x61h\x48\x34\x01\xed\x01\xed\x01\x13\x72\x6eucan/dlg@1.0.0\xa0")},
		{"UCAN without a map", did.PurposeUCAN, []byte(ucanStart + "dlg@1.0.0\x80")},
		{"UCAN as long as hash data", did.PurposeUCAN, append([]byte(ucanStart+"dlg@1.0.0\xa1"), make([]byte, 63-len(ucanStart+"dlg@1.0.0"))...)},
		{"UCAN with bytes before it", did.PurposeUCAN, []byte("\x82\x40" + ucanStart + "dlg@1.0.0\xa0")},
		{"invitation as long as hash data", did.PurposeInvitation, append([]byte{0xa1}, make([]byte, 63-len(did.PurposeInvitation))...)},
	} {
		if sig, err := k.Sign(c.purpose, c.msg); err == nil {
			t.Errorf("%s: signed %x", c.name, sig)
		}
	}
}

// No bytes are the input of two purposes.
func TestFormsCannotCollide(t *testing.T) {
	t.Parallel()
	if len(inputs) != 9 {
		t.Fatalf("there are %d forms; this test must check the new one, too", len(inputs))
	}
	for n := range 200 {
		msg := bytes.Repeat([]byte{0xa5}, n)
		input, err := record(msg)
		if err != nil {
			continue
		}
		if again, err := hashData(input); err == nil {
			t.Errorf("a record of %d bytes is hash data too: %q", n, again)
		}
	}
	for _, purpose := range []did.Purpose{did.PurposeInvitation, did.PurposeRotation, did.PurposeNode, did.PurposeGrant} {
		for n := range 200 {
			input, err := mapFor(purpose)(append([]byte{0xa9}, bytes.Repeat([]byte{0xa5}, n)...))
			if err != nil {
				continue
			}
			if again, err := hashData(input); err == nil {
				t.Errorf("a map of %d bytes for %q is hash data too: %q", n+1, purpose, again)
			}
			if _, err := card(input); err == nil {
				t.Errorf("a map of %d bytes for %q is a card too", n+1, purpose)
			}
		}
	}
	for n := range 200 {
		input, err := checkpoint(append([]byte("{"), bytes.Repeat([]byte{0xa5}, n)...))
		if err != nil {
			continue
		}
		if again, err := hashData(input); err == nil {
			t.Errorf("a checkpoint of %d bytes is hash data too: %q", n+1, again)
		}
		if _, err := card(input); err == nil {
			t.Errorf("a checkpoint of %d bytes is a card too", n+1)
		}
	}
	// The map of a UCAN begins like no domain, and none has the size of hash data.
	for _, tag := range []string{"dlg@1.0.0", "inv@1.0.0"} {
		for n := range 200 {
			input, err := ucan(append([]byte(ucanStart+tag+"\xa9"), bytes.Repeat([]byte{0xa5}, n)...))
			if err != nil {
				continue
			}
			if again, err := hashData(input); err == nil {
				t.Errorf("a UCAN of %d bytes is hash data too: %q", len(input), again)
			}
			if _, err := card(input); err == nil {
				t.Errorf("a UCAN of %d bytes is a card too", len(input))
			}
		}
	}
	for _, d := range domains {
		if _, err := ucan(append([]byte(d), bytes.Repeat([]byte{0xa0}, 100)...)); err == nil {
			t.Errorf("%q begins a UCAN", d)
		}
	}
	// The inputs that libp2p signs with the same key are rejected as hash data at any length.
	for _, d := range domains {
		for _, before := range []string{"", string(rune(len(d)))} {
			input := []byte(before + d)
			for len(input) < hashSize {
				input = append(input, 0xff)
			}
			if _, err := hashData(input[:hashSize]); err == nil {
				t.Errorf("%q is accepted as hash data", input)
			}
		}
	}
	// The input of a card is text, which is rejected as hash data, and begins with its header in base64url, like no other input.
	begin := base64.RawURLEncoding.EncodeToString([]byte(cardHeader[:33]))
	for n := range 2 * hashSize {
		header, body := []byte(cardHeader+`"}`), append([]byte("{"), make([]byte, n)...)
		input := []byte(base64.RawURLEncoding.EncodeToString(header) + "." + base64.RawURLEncoding.EncodeToString(body))
		if signed, err := card(input); err != nil || !strings.HasPrefix(string(signed), begin) {
			t.Fatalf("%s is not the input of a card: %v", input, err)
		}
		if len(input) < hashSize {
			continue
		}
		if _, err := hashData(input[:hashSize]); err == nil {
			t.Errorf("%s is hash data too", input[:hashSize])
		}
	}
	for _, d := range domains {
		if strings.HasPrefix(d, begin[:4]) {
			t.Errorf("%q begins like a card", d)
		}
	}
	// No domain begins like another.
	for i, d := range domains {
		for _, other := range domains[i+1:] {
			if strings.HasPrefix(other, d) || strings.HasPrefix(d, other) {
				t.Errorf("%q and %q begin alike", d, other)
			}
		}
	}
}

// The test lists the exported methods, so that it fails for a new one, which could sign arbitrary bytes.
func TestExportedMethods(t *testing.T) {
	t.Parallel()
	typ := reflect.TypeFor[*Key]()
	var got []string
	for i := range typ.NumMethod() {
		got = append(got, typ.Method(i).Name)
	}
	slices.Sort(got)
	want := []string{"DID", "Export", "Format", "GoString", "Libp2p", "LogValue", "MarshalJSON", "Peer", "Public", "Replace", "Save", "SaveEncrypted", "Sign", "String"}
	if !slices.Equal(got, want) {
		t.Errorf("methods %v, want %v", got, want)
	}
}

func BenchmarkSign(b *testing.B) {
	k, msg := newKey(b), hashes("x")
	for b.Loop() {
		if _, err := k.Sign(did.PurposeAssertion, msg); err != nil {
			b.Fatal(err)
		}
	}
}

func TestSaveKeepsExistingFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "d", "identity.pem")
	first, second := newKey(t), newKey(t)
	if err := first.Save(path); err != nil {
		t.Fatal(err)
	}
	if err := second.Save(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second save gave %v, want fs.ErrExist", err)
	}
	if got, err := Open(path); err != nil || got.DID() != first.DID() {
		t.Errorf("opened %v, %v; want %s", got, err, first.DID())
	}
}
