package ucan

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"io"
	"slices"

	"github.com/lmosd/lmosd/internal/cbor"
)

// A Form is how a container is written, and its first byte.
type Form byte

// The forms of containers.
const (
	Raw           Form = '@' // on libp2p frames
	Base64        Form = 'B' // with padding
	Base64URL     Form = 'C' // without padding; in headers and for people
	RawGzip       Form = 'M'
	Base64Gzip    Form = 'O'
	Base64URLGzip Form = 'P'
)

// text returns the base64 encoding of the form, or nil.
func (f Form) text() *base64.Encoding {
	switch f {
	case Base64, Base64Gzip:
		return base64.StdEncoding.Strict()
	case Base64URL, Base64URLGzip:
		return base64.RawURLEncoding.Strict()
	}
	return nil
}

func (f Form) zipped() bool { return f == RawGzip || f == Base64Gzip || f == Base64URLGzip }

func (f Form) known() bool { return f == Raw || f == RawGzip || f.text() != nil }

// A container is the content in CBOR.
type container struct {
	Tokens [][]byte `cbor:"ctn-v1"`
}

// Pack returns a container of the tokens, sorted and each once.
func Pack(f Form, tokens ...[]byte) ([]byte, error) {
	if !f.known() {
		return nil, badContainer("unknown form %q", byte(f))
	}
	sorted := slices.CompactFunc(slices.SortedFunc(slices.Values(tokens), bytes.Compare), bytes.Equal)
	b, err := cbor.Marshal(container{sorted})
	if err != nil {
		return nil, err
	}
	if f.zipped() {
		var z bytes.Buffer
		w := gzip.NewWriter(&z)
		_, _ = w.Write(b) // a buffer accepts all
		if err := w.Close(); err != nil {
			return nil, err
		}
		b = z.Bytes()
	}
	if text := f.text(); text != nil {
		b = text.AppendEncode(nil, b)
	}
	return append([]byte{byte(f)}, b...), nil
}

// Unpack returns the tokens of a container of any form, without their meaning: they are neither parsed nor verified, and their order says
// nothing. A container has at most [MaxBytes], also after decompression. The error wraps [InvalidClaim] or [TooLarge].
func Unpack(b []byte) ([][]byte, error) {
	if len(b) > 2*MaxBytes { // base64 adds a third
		return nil, failed(TooLarge, CID{}, "a container of %d bytes", len(b))
	}
	if len(b) == 0 || !Form(b[0]).known() {
		return nil, badContainer("its first byte is not one of @BCMOP")
	}
	f, b := Form(b[0]), b[1:]
	var err error
	if text := f.text(); text != nil {
		if bytes.ContainsAny(b, "\r\n") { // the decoder skips them
			return nil, badContainer("it has line breaks")
		}
		if b, err = text.AppendDecode(nil, b); err != nil {
			return nil, badContainer("%v", err)
		}
	}
	if f.zipped() {
		if b, err = unzip(b); err != nil {
			return nil, err
		}
	}
	if len(b) > MaxBytes {
		return nil, failed(TooLarge, CID{}, "a container with more than %d bytes", MaxBytes)
	}
	var c container
	if err := cbor.Unmarshal(b, &c); err != nil {
		return nil, badContainer("%v", err)
	}
	if len(c.Tokens) == 0 {
		return nil, badContainer("it has no tokens")
	}
	return c.Tokens, nil
}

// unzip returns at most one byte more than [MaxBytes].
func unzip(b []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, badContainer("%v", err)
	}
	plain, err := io.ReadAll(io.LimitReader(r, MaxBytes+1))
	if err != nil {
		return nil, badContainer("%v", err)
	}
	return plain, nil
}

func badContainer(format string, args ...any) error {
	return failed(InvalidClaim, CID{}, "not a container of UCANs: "+format, args...)
}
