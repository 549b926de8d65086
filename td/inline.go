package td

import (
	"crypto/sha256"
	_ "embed"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// A TD inside a record is one zstd frame (RFC 8878) with this dictionary of common TD text, which reduces the size by a third. The
// dictionary is raw content, has the id 1, and is a part of the record format: it never changes, and a new dictionary needs another id.
// Frames without a dictionary are accepted, too.
//
//go:embed record-1.dict
var dictionary []byte

const dictionaryID = 1

// The encoder, about 3 MB, and the decoder are created at their first use. Both are stateless between calls and safe for concurrent use.
var (
	zstdEncoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
			zstd.WithWindowSize(MaxTD), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false),
			zstd.WithSingleSegment(true), zstd.WithEncoderDictRaw(dictionaryID, dictionary))
		if err != nil {
			panic(err) // the options are literals
		}
		return e
	})
	zstdDecoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(2*MaxTD),
			zstd.WithDecoderMaxWindow(2*MaxTD), zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderDictRaw(dictionaryID, dictionary))
		if err != nil {
			panic(err) // the options are literals
		}
		return d
	})
)

// compressTD returns the TD compressed for a record, or nil if that is more than [MaxInline] bytes.
func compressTD(td []byte) []byte {
	packed := zstdEncoder().EncodeAll(td, nil)
	if len(packed) > MaxInline {
		return nil
	}
	return packed
}

// decompressTD returns the TD inside the record. It allocates at most Size bytes and checks the hash.
func (r *Record) decompressTD() ([]byte, error) {
	td, err := zstdDecoder().DecodeAll(r.Inline, make([]byte, 0, r.Size))
	if err != nil {
		return nil, fmt.Errorf("record of %s: %w: the inline TD cannot be decompressed: %w", r.Thing, ErrHash, err)
	}
	return td, r.checkTD(td)
}

// checkTD checks a TD against the size and hash of the record.
func (r *Record) checkTD(td []byte) error {
	if len(td) != r.Size {
		return fmt.Errorf("record of %s: %w: expected %d bytes, got %d", r.Thing, ErrHash, r.Size, len(td))
	}
	if sha256.Sum256(td) != r.Hash {
		return fmt.Errorf("record of %s: %w: SHA-256 differs", r.Thing, ErrHash)
	}
	return nil
}
