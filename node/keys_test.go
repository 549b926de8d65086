package node

import (
	"log/slog"
	"os"
	"testing"

	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/storage"
	"github.com/lmosd/lmosd/node/datadir"
)

func TestTokensOfAnUnusableDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(tokens.OperatorPath(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{dir, "/nowhere/at/all"} {
		n := &Node{opts: Options{Dir: at, MQTT: "127.0.0.1:0"}, stores: new(datadir.Stores)}
		wantCode(t, n.openTokens(), interact.ConfigInvalid)
	}
}

func openStores(t testing.TB, engine, dir string) *datadir.Stores {
	t.Helper()
	s, err := datadir.Open(engine, dir, storage.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}
