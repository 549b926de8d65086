package testnet

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/examples/weather/agent"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/tdtest"
)

// runAs makes the test binary be the lmosd program: see process_test.go.
const runAs = "LMOSD_TESTNET_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(runAs) != "" {
		os.Exit(runNode(os.Args[1:]))
	}
	tdtest.WarmUp()
	testmain.Run(m)
}

func signed(key *keystore.Key, raw []byte, now time.Time) *td.Signed {
	t, err := td.Complete(raw, key.DID())
	if err != nil {
		panic(err)
	}
	s, err := td.Sign(t, key, td.Lease{Seq: uint64(now.UnixMilli()), Now: now, Lifetime: time.Hour, Hosts: []td.Host{{Node: key.DID()}}})
	if err != nil {
		panic(err)
	}
	return s
}

// weatherTD is the weather agent at a port of this machine.
func weatherTD(port int) []byte {
	_, raw := agent.New(fmt.Sprintf("http://127.0.0.1:%d", port))
	return raw
}

// recordKey is where the record of a signed thing is kept.
func recordKey(t *testing.T, s *td.Signed) [32]byte {
	t.Helper()
	r, err := td.NewVerifier(nil).Record(s.Record, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return r.Key()
}

const capability = "urn:example:weather:forecast"
