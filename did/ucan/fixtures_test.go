package ucan

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ipfs/go-cid"
)

// dagBytes are bytes in DAG-JSON.
type dagBytes struct {
	Slash struct{ Bytes string } `json:"/"`
}

func (d dagBytes) decode(t *testing.T) []byte {
	t.Helper()
	b, err := base64.RawStdEncoding.DecodeString(d.Slash.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The official cases of chains: 7 valid ones, and 13 with the names of their errors.
func TestInvocationFixtures(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("testdata/invocation.json")
	if err != nil {
		t.Fatal(err)
	}
	type cases []struct {
		Name       string
		Invocation dagBytes
		Proofs     []dagBytes
		Time       int64
		Error      struct{ Name Reason }
	}
	var fixtures struct{ Valid, Invalid cases }
	if err := json.Unmarshal(b, &fixtures); err != nil {
		t.Fatal(err)
	}
	if len(fixtures.Valid) != 7 || len(fixtures.Invalid) != 13 {
		t.Fatalf("%d valid and %d invalid cases", len(fixtures.Valid), len(fixtures.Invalid))
	}
	v := NewVerifier(Options{})
	for _, c := range append(fixtures.Valid, fixtures.Invalid...) {
		t.Run(c.Name, func(t *testing.T) {
			tokens := [][]byte{c.Invocation.decode(t)}
			for _, p := range c.Proofs {
				tokens = append(tokens, p.decode(t))
			}
			for range 2 { // the second time with what the first one remembers
				_, err := v.Check(tokens, time.Unix(c.Time, 0))
				checkReason(t, err, c.Error.Name)
			}
		})
	}
}

func TestDelegationFixture(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("testdata/delegation.json")
	if err != nil {
		t.Fatal(err)
	}
	var fixtures struct {
		Valid []struct {
			Token    []byte
			CID      string
			Envelope struct {
				Payload struct {
					Iss, Aud, Sub, Cmd string
					Exp                int64
					Nonce              []byte
				}
				Signature []byte
			}
		}
	}
	if err := json.Unmarshal(b, &fixtures); err != nil || len(fixtures.Valid) != 1 {
		t.Fatal(len(fixtures.Valid), err)
	}
	c := fixtures.Valid[0]
	token, err := Parse(c.Token)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := cid.Decode(c.CID); err != nil || !bytes.Equal(id.Hash()[2:], token.cid[:]) || id.Prefix().Codec != 0x71 {
		t.Errorf("CID %s, want %s: %v", token.CID(), c.CID, err)
	}
	if id, err := cid.Decode(token.CID().String()); err != nil || id.KeyString() != string(append([]byte{1, 0x71, 0x12, 0x20}, token.cid[:]...)) {
		t.Errorf("%s is read as %s, %v", token.CID(), id, err)
	}
	d, p := token.Delegation(), c.Envelope.Payload
	if string(d.Issuer) != p.Iss || string(d.Audience) != p.Aud || string(d.Subject) != p.Sub || string(d.Command) != p.Cmd || d.Expires.Unix() != p.Exp ||
		!bytes.Equal(d.Nonce, p.Nonce) || !bytes.Equal(token.signature, c.Envelope.Signature) {
		t.Errorf("got %+v", d)
	}
	if err := token.checkSignature(); err != nil {
		t.Error(err)
	}
}

// The official containers, one of each form, hold ten tokens of a release candidate each.
func TestContainerFixtures(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Base64StdPadding", "Base64StdPaddingGzipped", "Base64URL", "Base64URLGzipped", "Bytes", "BytesGzipped"} {
		b, err := os.ReadFile(filepath.Join("testdata", "container", name))
		if err != nil {
			t.Fatal(err)
		}
		tokens, err := Unpack(b)
		if err != nil || len(tokens) != 10 {
			t.Fatalf("%s: %d tokens, %v", name, len(tokens), err)
		}
		for _, token := range tokens {
			if !bytes.Contains(token, []byte("ucan/dlg@1.0.0-rc.1")) {
				t.Errorf("%s has a token %x", name, token)
			}
			_, err := Parse(token)
			checkReason(t, err, InvalidClaim) // of another version
		}
		// Apart from the order, which the files do not sort, the content is what Pack writes.
		again, err := Pack(Form(b[0]), tokens...)
		if err != nil {
			t.Fatal(err)
		}
		sorted, err := Unpack(again)
		slices.SortFunc(tokens, bytes.Compare)
		if err != nil || !slices.EqualFunc(sorted, tokens, bytes.Equal) {
			t.Errorf("%s packed again has other tokens: %v", name, err)
		}
	}
}
