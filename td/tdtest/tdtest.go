// Package tdtest provides Thing Descriptions for tests.
package tdtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/td"
)

// WarmUp signs and verifies one TD. The codec of package td creates channels at its first use; channels that are created in a bubble of
// testing/synctest cannot be used outside of it. TestMain calls WarmUp, so that no test is the first.
func WarmUp() {
	thing, err := td.Complete([]byte(text("urn:example:thing", "Thing", "", "")), didtest.Key(0).DID())
	if err != nil {
		panic(fmt.Sprintf("TD of the warm-up: %v", err))
	}
	now := time.Now()
	s, err := td.Sign(thing, didtest.Key(0), td.Lease{Seq: 1, Now: now, Lifetime: time.Hour})
	if err != nil {
		panic(fmt.Sprintf("signature of the warm-up: %v", err))
	}
	v := td.NewVerifier(nil)
	_, errWith := s.Verify(context.Background(), v, now)
	s.TD = nil // the record has the TD, compressed
	_, errWithout := s.Verify(context.Background(), v, now)
	if err := errors.Join(errWith, errWithout); err != nil {
		panic(fmt.Sprintf("verification of the warm-up: %v", err))
	}
}

// Thing parses a TD with the members, in which BASE is replaced. Without security definitions it has nosec.
func Thing(t testing.TB, base, members string) *td.Thing {
	t.Helper()
	return Named(t, "urn:example:thing", "Thing", base, members)
}

// Named is [Thing] with an id and a title.
func Named(t testing.TB, id, title, base, members string) *td.Thing {
	t.Helper()
	thing, err := td.Parse([]byte(text(id, title, base, members)))
	if err != nil {
		t.Fatalf("the TD of the test: %v", err)
	}
	return thing
}

func text(id, title, base, members string) string {
	if members != "" {
		members = ", " + members
	}
	if !strings.Contains(members, `"securityDefinitions"`) {
		members = `, "securityDefinitions": {"nosec_sc": {"scheme": "nosec"}}, "security": ["nosec_sc"]` + members
	}
	return `{"@context": "https://www.w3.org/2022/wot/td/v1.1", "id": "` + id + `", "title": "` + title + `"` +
		strings.ReplaceAll(members, "BASE", base) + `}`
}
