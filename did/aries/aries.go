//go:build !noaries

package aries

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	legacy "github.com/hyperledger/aries-framework-go/pkg/doc/did"
	"github.com/hyperledger/aries-framework-go/pkg/vdr/key"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/jcs"
)

// timeout ends the wait for a call. Reading the largest document takes a few milliseconds. Tests raise it: they do not depend on the speed of
// the machine.
var timeout = 2 * time.Second

// slotTimeout ends the wait for a slot. Many calls at once take longer than one.
const slotTimeout = 10 * time.Second

// slots limits the concurrent calls, abandoned ones included.
var slots = make(chan struct{}, 4)

// Resolver returns a resolver for did:keys of P-256, P-384, P-521, BLS12-381 and Ed25519 keys. The verification
// methods have legacy types (JsonWebKey2020, Ed25519VerificationKey2018). The error wraps [did.ErrInvalid] for a damaged key,
// [did.ErrMethod] for other DIDs, or the error of ctx. A call ends with a deadline error after two seconds, and the wait for others after ten. The resolver is safe for
// concurrent use and sends no requests.
func Resolver() did.Resolver { return resolver{} }

type resolver struct{}

// Resolve computes the document of id.
func (resolver) Resolve(ctx context.Context, id did.DID) (*did.Document, error) {
	if id.Method() != "key" {
		return nil, fmt.Errorf("%w: resolve %q", did.ErrMethod, id.Short())
	}
	if _, err := did.ParseForeign(string(id)); err != nil {
		return nil, err
	}
	var doc *legacy.Doc
	err := recovered(ctx, func() error {
		r, err := key.New().Read(string(id))
		if err == nil {
			doc = r.DIDDocument
		}
		return err
	})
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("resolve %q: %w", id.Short(), err)
	case err != nil: // the DID is valid, so the module does not support its algorithm
		return nil, fmt.Errorf("%w: resolve %q: %w", did.ErrMethod, id.Short(), err)
	}
	return translate(doc, nil, id)
}

// ReadDocument reads a DID document of DID Core 1.0 or older: the contexts v0.11 and w3id.org/did/v1, publicKey lists, keys in hex. The
// module rejects the contexts 2019/did/v1 and v1.1. The document must be strict JSON of at most [did.MaxDocument] bytes. The result is that
// of [did.ParseDocument] for the same document in the current form; Raw is raw itself. The error wraps [did.ErrInvalid].
func ReadDocument(raw []byte) (*did.Document, error) {
	top, err := jcs.Object(raw, did.MaxDocument)
	if err == nil {
		err = precheck(top)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: legacy document: %w", did.ErrInvalid, err)
	}
	var doc *legacy.Doc
	if err := recovered(context.Background(), func() (err error) {
		doc, err = legacy.ParseDocument(raw)
		return err
	}); err != nil {
		return nil, fmt.Errorf("%w: legacy document: %w", did.ErrInvalid, err)
	}
	id, err := did.ParseForeign(doc.ID)
	if err != nil {
		return nil, fmt.Errorf("legacy document: %w", err)
	}
	d, err := translate(doc, top, id)
	if err != nil {
		return nil, err
	}
	d.Raw = raw
	return d, nil
}

// recovered runs call and returns its error, or another one if call panics or takes longer than timeout or ctx. The module takes no context:
// an abandoned call continues and keeps its slot until it ends, so that the caller may use what call has set only if there is no error.
// recovered is not generic, because the linker would then keep each method of a document, and with them 7 MB of unused code.
func recovered(ctx context.Context, call func() error) error {
	waiting, stop := context.WithTimeout(ctx, max(timeout, slotTimeout))
	defer stop()
	select {
	case slots <- struct{}{}:
	case <-waiting.Done():
		return waiting.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer func() { <-slots }()
		var err error
		defer func() { done <- err }()
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("the reader of legacy formats failed: %v", p)
			}
		}()
		err = call()
	}()
	select {
	case err := <-done:
		return brief(err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// brief cuts a message of the module, which may quote the whole document, to its first line.
func brief(err error) error {
	if err == nil {
		return nil
	}
	text, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "did document not valid:\n- "), "\n")
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "…"
	}
	return errors.New(text)
}
