package auditcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/audit"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// lmosd audit tail prints what a node records, until it is interrupted.
func TestTailFollows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		key, err := keystore.FromSeed([32]byte{1})
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		l, err := audit.Open(audit.Options{Dir: filepath.Join(dir, "audit"), Signer: key})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		c := cli.New([]string{"HOME=" + dir}, nil, &out, io.Discard)
		c.Flags.DataDir, c.Flags.Output = dir, "table"
		ctx, cancel := context.WithCancel(t.Context())
		ended, wrote := make(chan error), make(chan error)
		go func() { wrote <- l.Run(ctx) }()
		go func() { ended <- follow(ctx, c, filter{denied: true}, 10, 0) }()
		for i := range 3 {
			l.Change(audit.ChangeTrust, "not selected")
			l.Decision(audit.Decision{Op: "find", Thing: fmt.Sprint("thing", i)})
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if got := strings.Count(out.String(), "\n"); got != i+2 || !strings.Contains(out.String(), fmt.Sprintf("\tfind\tthing%d\t", i)) {
				t.Errorf("after %d denials: %s", i+1, out.String())
			}
		}
		cancel()
		var silent cli.SilentError
		if err := <-ended; !errors.As(err, &silent) || int(silent) != cli.ExitInterrupted {
			t.Errorf("got %v", err)
		}
		if err := errors.Join(<-wrote, l.Close()); err != nil {
			t.Error(err)
		}
	})
}

func TestShort(t *testing.T) {
	t.Parallel()
	for who, want := range map[string]string{"": "", "local": "local", "local#uid:1000": "local#uid:1000",
		"did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH#crm": "z6MkpTHR…#crm"} {
		if got := short(who); got != want {
			t.Errorf("%q: got %q, want %q", who, got, want)
		}
	}
}
