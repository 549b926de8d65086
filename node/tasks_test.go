package node

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
)

// A list has the current states of tasks: an ended task is final without a query, and a task at a failed host is unknown, with its last state.
func TestListOfTasks(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 2)
	consumer, host := nodes[0], nodes[1]
	enough := make(chan struct{})
	thing, _, err := host.mesh.publisher.Attach(t.Context(), []byte(sleepDraft), sleeper(enough))
	if err != nil {
		t.Fatal(err)
	}
	knows(t, consumer, thing)
	begin := func() (id string) {
		t.Helper()
		for r, err := range asConsumer(consumer).Do(t.Context(), &interact.Message{Type: interact.InvokeAction, Thing: thing, Name: "sleep", Detach: true}) {
			if err != nil {
				t.Fatal(err)
			}
			return r.ActionID
		}
		return ""
	}
	tasks := func() map[string]api.Task {
		t.Helper()
		list, err := consumer.Client().Tasks(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]api.Task{}
		for _, one := range list.Items {
			all[one.ID] = one
		}
		return all
	}
	first := begin()
	until(t, "it runs", func() bool { return tasks()[first].Status == "running" })
	began := time.Now()
	close(enough)
	until(t, "it is said to be done", func() bool { return tasks()[first].Status == "completed" })
	if done := tasks()[first]; done.Ended.IsZero() || done.Ended.Before(began) || done.Reason != "" || !done.LastSeen.IsZero() || done.Output != nil {
		t.Errorf("of what is done the list says %+v", done)
	}

	thing, _, err = host.mesh.publisher.Attach(t.Context(), []byte(strings.ReplaceAll(sleepDraft, "Sleeper", "Dreamer")), sleeper(make(chan struct{})))
	if err != nil {
		t.Fatal(err)
	}
	knows(t, consumer, thing)
	second := begin()
	until(t, "it runs", func() bool { return tasks()[second].Status == "running" })
	if err := host.stop(); err != nil {
		t.Fatal(err)
	}
	lost := tasks()[second]
	if lost.Status == "running" || lost.Status == api.UnknownTask && (lost.LastStatus != "running" || lost.LastSeen.IsZero() || lost.Reason == "") {
		t.Errorf("of what ran at a host that is gone the list says %+v", lost)
	}
	if lost.Status != api.UnknownTask {
		t.Errorf("the host has ended and said %s of it", lost.Status)
	}
	if again := tasks()[first]; again.Status != "completed" {
		t.Errorf("what is done is now %+v", again)
	}
	known, err := consumer.Client().KnownTasks(t.Context())
	if err != nil || len(known.Items) != 2 || known.Items[0].Status != "running" || known.Items[0].LastSeen.IsZero() {
		t.Errorf("known are %+v, %v", known, err)
	}
	b, err := json.Marshal(lost)
	if err != nil || !strings.Contains(string(b), `"status":"unknown","last_status":"running","last_seen":"2`) {
		t.Errorf("%s, %v", b, err)
	}
}
