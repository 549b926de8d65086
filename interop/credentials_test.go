package interop

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/aries"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/testprogram"
)

// Credentials of the data model 1.1 that another implementation signs now verify, with each suite and each type of key.
func TestCredentialsOfDigitalBazaar(t *testing.T) {
	t.Parallel()
	testprogram.Modules(t, ".")
	dir, subject, now := t.TempDir(), didtest.NewKey().DID(), time.Now()
	run(t, &struct{}{}, "credentials.mjs", dir, string(subject), now.UTC().Format(time.RFC3339), now.Add(time.Hour).UTC().Format(time.RFC3339))
	resolver := did.Resolvers(map[string]did.Resolver{"key": did.Fallback(did.Keys(), aries.Resolver())})
	for _, name := range []string{"ed25519-2018", "ed25519-2020", "jws-2020-ed25519", "jws-2020-p256", "jws-2020-p384"} {
		raw, err := os.ReadFile(filepath.Join(dir, name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		c, err := aries.VerifyCredential(t.Context(), raw, aries.Check{Resolver: resolver, Subject: subject})
		if err != nil || c.Types[0] != "RoleCredential" {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}
