package verify

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A description that its owner signed verifies. A changed description, or a claim of the node that the record does not have, is refused.
func TestShow(t *testing.T) {
	t.Parallel()
	key := didtest.NewKey()
	thing, err := td.Complete([]byte(`{"@context":"https://www.w3.org/2022/wot/td/v1.1","id":"urn:x:a","title":"A",
		"security":"none","securityDefinitions":{"none":{"scheme":"nosec"}}}`), key.DID())
	if err != nil {
		t.Fatal(err)
	}
	signed, err := td.Sign(thing, key, td.Lease{Seq: 1, Now: time.Now(), Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		id, last string // last is the step at which the check ends
		change   func([]byte) []byte
		ok       bool
	}{
		"as signed":           {"urn:x:a", "proof", bytes.Clone, true},
		"another id":          {"urn:x:b", "record", bytes.Clone, false},
		"another description": {"urn:x:a", "hash", func(b []byte) []byte { return append(b, ' ') }, false},
	} {
		for _, form := range []string{"table", "json"} {
			var out, messages bytes.Buffer
			c := cli.New(nil, strings.NewReader(""), &out, &messages)
			c.Flags.Output = form
			d := &api.AgentDetail{Record: signed.Record, Agent: api.Agent{ID: test.id, Owner: key.DID(), Ref: test.id}}
			err := Show(t.Context(), c, d, test.change(bytes.Clone(signed.TD)))
			silent := cli.SilentError(0)
			switch {
			case test.ok && err != nil,
				!test.ok && form == "table" && interact.AsError(err).Code != interact.BadSignature,
				!test.ok && form == "json" && (!errors.As(err, &silent) || int(silent) != cli.ExitRefused):
				t.Errorf("%s, %s: got %v", name, form, err)
			}
			if text := out.String(); form == "table" && !strings.Contains(text, test.last) || form == "json" && strings.Contains(text, `"verified":true`) != test.ok {
				t.Errorf("%s, %s: printed %s", name, form, text)
			}
		}
	}
}

func TestHash(t *testing.T) {
	t.Parallel()
	if sum := sha256.Sum256([]byte("x")); Hash([]byte("x")) != hex.EncodeToString(sum[:]) {
		t.Error("the hash is not the SHA-256 in hexadecimal digits")
	}
}
