//go:build noaries

package aries

import (
	"errors"
	"testing"

	"github.com/lmosd/lmosd/did"
)

func TestStubReportsTheMissingBuildTag(t *testing.T) {
	t.Parallel()
	if _, err := Resolver().Resolve(t.Context(), "did:key:zDnaerDaTF5BXEavCrfRZEk316dpbLsfPDZ3WJ5hRTPFU2169"); !errors.Is(err, did.ErrLegacyUnsupported) {
		t.Error(err)
	}
	if _, err := ReadDocument([]byte("{}")); !errors.Is(err, did.ErrLegacyUnsupported) {
		t.Error(err)
	}
}
