package ucan

import (
	"bytes"
	"compress/gzip"
	"errors"
	"slices"
	"testing"

	"github.com/lmosd/lmosd/internal/cbor"
)

var forms = []Form{Raw, Base64, Base64URL, RawGzip, Base64Gzip, Base64URLGzip}

func TestPack(t *testing.T) {
	t.Parallel()
	tokens := [][]byte{[]byte("b"), []byte("a"), []byte("b"), {0xff}, {}}
	for _, f := range forms {
		b, err := Pack(f, tokens...)
		if err != nil || b[0] != byte(f) {
			t.Fatalf("%c: %v", f, err)
		}
		got, err := Unpack(b)
		if err != nil || !slices.EqualFunc(got, [][]byte{{}, []byte("a"), []byte("b"), {0xff}}, bytes.Equal) {
			t.Errorf("%c: %q, %v", f, got, err)
		}
	}
	if _, err := Pack('Z', tokens...); !errors.Is(err, InvalidClaim) {
		t.Errorf("another form: %v", err)
	}
}

func zip(t testing.TB, b []byte) []byte {
	t.Helper()
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return z.Bytes()
}

func TestUnpackRefuses(t *testing.T) {
	t.Parallel()
	plain := func(v any) []byte {
		b, err := cbor.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	one := plain(map[string]any{"ctn-v1": [][]byte{{1}}})
	for name, c := range map[string]struct {
		b    []byte
		want Reason
	}{
		"nothing":               {nil, InvalidClaim},
		"only a form":           {[]byte("@"), InvalidClaim},
		"an unknown form":       {append([]byte("A"), one...), InvalidClaim},
		"a trailing byte":       {append(append([]byte("@"), one...), 0), InvalidClaim},
		"no tokens":             {append([]byte("@"), plain(map[string]any{"ctn-v1": [][]byte{}})...), InvalidClaim},
		"another key":           {append([]byte("@"), plain(map[string]any{"ctn-v2": [][]byte{{1}}})...), InvalidClaim},
		"a second key":          {append([]byte("@"), plain(map[string]any{"ctn-v1": [][]byte{{1}}, "x": 1})...), InvalidClaim},
		"texts":                 {append([]byte("@"), plain(map[string]any{"ctn-v1": []string{"a"}})...), InvalidClaim},
		"a list":                {append([]byte("@"), plain([][]byte{{1}})...), InvalidClaim},
		"padding in base64url":  {[]byte("CoWZjdG4tdjGBQQE="), InvalidClaim},
		"no padding in base64":  {[]byte("BoWZjdG4tdjGBQQE"), InvalidClaim},
		"a line break":          {[]byte("CoWZjdG4t\ndjGBQQE"), InvalidClaim},
		"bits after the end":    {[]byte("CoWZjdG4tdjGBQQF"), InvalidClaim},
		"no gzip":               {append([]byte("M"), one...), InvalidClaim},
		"half a gzip":           {append([]byte("M"), zip(t, one)[:20]...), InvalidClaim},
		"bytes after the gzip":  {append(append([]byte("M"), zip(t, one)...), 1), InvalidClaim},
		"more bytes":            {append([]byte("@"), make([]byte, MaxBytes+1)...), TooLarge},
		"far more bytes":        {append([]byte("C"), make([]byte, 2*MaxBytes)...), TooLarge},
		"a gzip of 1 MiB":       {append([]byte("M"), zip(t, make([]byte, 1<<20))...), TooLarge},
		"a gzip of two members": {append(append([]byte("M"), zip(t, one)...), zip(t, one)...), InvalidClaim},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Unpack(c.b)
			if got != nil {
				t.Errorf("got %q", got)
			}
			checkReason(t, err, c.want)
		})
	}
}

// FuzzUnpack: what is unpacked can be packed, and unpacked again.
func FuzzUnpack(f *testing.F) {
	for _, form := range forms {
		b, err := Pack(form, []byte("a token"), []byte("another"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		tokens, err := Unpack(b)
		if err != nil {
			return
		}
		total := 0
		for _, token := range tokens {
			total += len(token)
		}
		if total > MaxBytes {
			t.Fatalf("%d bytes", total)
		}
		again, err := Pack(Raw, tokens...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Unpack(again); err != nil {
			t.Fatal(err)
		}
	})
}
