//go:build noaries

package aries

import (
	"errors"
	"testing"

	"github.com/lmosd/lmosd/did"
)

func TestStubReportsTheMissingBuildTag(t *testing.T) {
	t.Parallel()
	const id = "did:key:zDnaerDaTF5BXEavCrfRZEk316dpbLsfPDZ3WJ5hRTPFU2169"
	if _, err := Resolver().Resolve(t.Context(), id); !errors.Is(err, did.ErrLegacyUnsupported) {
		t.Error(err)
	}
	if _, err := VerifyCredential(t.Context(), []byte("{}"), Check{}); !errors.Is(err, did.ErrLegacyUnsupported) {
		t.Error(err)
	}
	if _, err := ReadDocument([]byte("{}")); !errors.Is(err, did.ErrLegacyUnsupported) {
		t.Error(err)
	}
}
