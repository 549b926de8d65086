package gateway

import (
	"context"
	"encoding/json"
	"iter"
	"testing"
	"time"

	ds "github.com/ipfs/go-datastore"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/task"
	"github.com/lmosd/lmosd/td"
)

// emptyDirectory has no description.
type emptyDirectory struct{}

func (emptyDirectory) FindLocal(context.Context, td.Query) iter.Seq[*td.Description] {
	return func(func(*td.Description) bool) {}
}

func (emptyDirectory) IsDown(did.DID) bool { return false }

// The error of a failed task is always JSON, because a task with other data cannot be encoded.
func TestTaskErrorIsJSON(t *testing.T) {
	t.Parallel()
	ledger, err := task.NewLedger(ds.NewMapDatastore(), task.LedgerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for data, want := range map[string]string{`{"detail":"no water"}`: `{"detail":"no water"}`, "no water": `"no water"`,
		`{"detail":`: `"{\"detail\":"`} {
		mesh := interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			r := &interact.Message{ActionID: "1", Status: interact.StatusRunning, Time: time.Now()}
			if m.Type == interact.QueryAction {
				r.Status, r.Data = interact.StatusFailed, []byte(data)
			}
			return interact.One(r)
		})
		start := &interact.Message{Type: interact.InvokeAction, From: did.Consumer(did.Unproven, ""), Thing: "urn:x:kettle", Name: "boil"}
		if _, err := interact.Call(t.Context(), ledger.Middleware()(mesh), start); err != nil {
			t.Fatal(err)
		}
		got, err := LedgerTasks{Ledger: ledger, Mesh: mesh, Directory: emptyDirectory{}}.Get(did.AsProcess(t.Context()), "1")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := json.Marshal(got); err != nil || string(got.Error) != want {
			t.Errorf("%s: got the error %s, %v", data, got.Error, err)
		}
	}
}
