package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
)

func TestTasksOfANode(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	x = x.at(x.node("n"))
	flag := filepath.Join(x.home, "go-on")
	x.exposed(x.script("report.sh", "while [ ! -e '"+flag+"' ]; do sleep 0.05; done; echo done"))
	id := strings.TrimSpace(x.ok("call", "report", "run", "--async"))
	other := strings.TrimSpace(x.ok("call", "report", "run", "--async"))
	if id == other || len(id) < 16 {
		t.Fatalf("the tasks are %q and %q", id, other)
	}
	contains(t, x.ok("task", "ls"), id+"\turn:lmos:did:key:", "\trun\t", other)
	contains(t, x.ok("task", "show", other[:13]), "status\trunning\n")
	contains(t, x.fails(cli.ExitTimeout, "task", "wait", id, "--timeout", "100ms"), "the action continues", "hint   lmosd task wait "+id)

	if out := x.ok("task", "cancel", other[:13]); out != "cancelled "+other+"\n" {
		t.Errorf("cancel prints %q", out)
	}
	contains(t, x.fails(cli.ExitInterrupted, "task", "wait", other), "LMOS-1499", "cancelled")

	wait := x.start("task", "wait", id[:13])
	x.file("go-on", "")
	if code := wait.wait(); code != 0 || wait.out.String() != "done\n" {
		t.Errorf("exit code %d, %q %s", code, wait.out.String(), wait.talk.String())
	}
	if task := decode[api.Task](t, x.ok("task", "show", id, "-o", "json")); task.Status != "completed" || string(task.Output) != `"done"` || task.Ended.IsZero() {
		t.Errorf("the task is %+v", task)
	}
	contains(t, x.ok("__complete", "task", "wait", ""), id, "report run completed")
}

// With one key an action runs once.
func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	x = x.at(x.node("n"))
	x.exposed(x.script("count.sh", "echo x >> count; wc -l < count"))
	for range 2 {
		if out := x.ok("call", "count", "run", "--idempotency-key", "order-7"); strings.TrimSpace(out) != "1" {
			t.Errorf("the agent answers %q", out)
		}
	}
	if out := x.ok("call", "count", "run"); strings.TrimSpace(out) != "2" {
		t.Errorf("without the key it answers %q", out)
	}
}

func TestWatchAcrossNodes(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	file := x.weather() // before the nodes, so that it ends after them: they listen to its events
	a := x.node("a")
	b := x.node("b", "--mesh.bootstrap", a.P2P[0])
	x.at(a).ok("publish", file)
	eventually(t, "the other node finds it", func() bool { return x.at(b).lmosd("show", "weather").code == 0 })
	contains(t, x.at(b).ok("__complete", "watch", "weather", ""), "userFeedbackReceived")
	watch := x.at(b).start("watch", "weather", "--limit", "2", "-o", "jsonl")
	eventually(t, "two events were told", func() bool {
		select {
		case <-watch.ended:
			return true
		default:
		}
		x.at(a).ok("call", "weather", "giveFeedback", "rating=5") // there may be no subscription yet
		return false
	})
	lines := strings.Split(strings.TrimSpace(watch.out.String()), "\n")
	if watch.wait() != 0 || len(lines) != 2 {
		t.Fatalf("exit code %d\n%s%s", watch.wait(), watch.out.String(), watch.talk.String())
	}
	e := decode[occurrence](t, lines[0])
	if e.Event != "userFeedbackReceived" || string(e.Data) != `{"rating":5}` || e.ID == "" || e.Time.IsZero() {
		t.Errorf("the event is %s", lines[0])
	}
	// Later events are replayed.
	if again := decode[occurrence](t, x.at(b).ok("watch", "weather", "--since", e.ID, "--limit", "1", "-o", "jsonl")); again.ID != decode[occurrence](t, lines[1]).ID {
		t.Errorf("after %s came %+v", e.ID, again)
	}
	if said := x.at(b).fails(cli.ExitTimeout, "watch", "weather", "--limit", "1", "--timeout", "100ms"); !strings.Contains(said, "0 events of 1 came") {
		t.Errorf("it says %s", said)
	}
}

func TestWatchIsInterrupted(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	file := x.weather() // before the node, which listens to its events
	x = x.at(x.node("n"))
	x.ok("publish", file)
	watch := x.start("watch", "weather")
	eventually(t, "an event was told", func() bool {
		x.ok("call", "weather", "giveFeedback", "rating=4")
		return strings.Contains(watch.out.String(), "{\"rating\":4}")
	})
	if code := watch.stop(); code != cli.ExitInterrupted || strings.Contains(watch.talk.String(), "error") {
		t.Errorf("exit code %d, %s", code, watch.talk.String())
	}
}
