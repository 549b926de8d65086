package protocol

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestPace(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	p := NewPace(3, time.Second)
	for i, c := range []struct {
		after time.Duration
		want  bool
		wait  time.Duration // then
	}{
		{0, true, 0}, {0, true, 0}, {0, true, time.Second + 1}, {0, false, time.Second + 1}, {time.Second / 2, false, time.Second/2 + 1},
		{time.Second / 2, true, time.Second + 1}, {time.Hour, true, 0}, {0, true, 0}, {0, true, time.Second + 1}, {0, false, time.Second + 1},
	} {
		now = now.Add(c.after)
		if got := p.Take(now); got != c.want || p.Wait(now) != c.wait {
			t.Errorf("%d: got %t, and %v to wait", i, got, p.Wait(now))
		}
	}
	if new(Pace).Take(now) {
		t.Error("the zero value lets something through")
	}
	if NewPace(1, time.Second).Wait(now) != 0 {
		t.Error("there is something to wait for")
	}
}

func TestQuota(t *testing.T) {
	t.Parallel()
	q := NewQuota(2, 3)
	a, b, c := q.Enter("ada"), q.Enter("ada"), q.Enter("eve")
	if a == nil || b == nil || c == nil {
		t.Fatal("there is no room")
	}
	if q.Enter("ada") != nil || q.Enter("bob") != nil {
		t.Error("there is too much room")
	}
	c()
	if q.Enter("ada") != nil {
		t.Error("one caller has more than its share")
	}
	a()
	b()
	for range 2 {
		if q.Enter("ada") == nil {
			t.Error("what was left is not free")
		}
	}
	if len(q.by) != 1 || q.sum != 2 {
		t.Errorf("it remembers %v", q.by)
	}
}

// Progress and log messages beyond the pace are dropped; what has to be known is not.
func TestFloods(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]int{Progress: chatter, LogMessage: chatter, ToolsChanged: 600, ResourceUpdated: 600} {
		synctest.Test(t, func(t *testing.T) {
			p := newPending("1", nil)
			for range 600 {
				p.add(Request("", method, nil))
			}
			p.add(Respond("1", struct{}{}))
			if n := len(p.said); n != want+1 || !p.said[n-1].IsResponse() {
				t.Errorf("%s: %d came", method, n)
			}
		})
	}
}

// What readers that do not look at case take for a member is no message: one that judges would see another than one that acts.
func TestMembersThatLookLikeOthers(t *testing.T) {
	t.Parallel()
	for text, good := range map[string]bool{
		`{"jsonrpc":"2.0","id":1,"method":"tools/list","Method":"tools/call"}`:                              false,
		`{"jsonrpc":"2.0","id":1,"METHOD":"tools/call"}`:                                                    false,
		`{"jsonrpc":"2.0","id":1,"Id":2,"method":"x"}`:                                                      false,
		`{"jsonrpc":"2.0","id":1,"method":"x","Params":{}}`:                                                 false,
		`{"jsonrpc":"2.0","id":1,"result":{},"Result":{}}`:                                                  false,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","Name":"b"}}`:                   false,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"NAME":"b"}}`:                              false,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","\u004eame":"b"}}`:              false,
		`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"a:","URI":"b:"}}`:               false,
		`{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskid":"b"}}`:                             false,
		`{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"a","ta` + "\u017f" + `kId":"b"}}`: false,
		`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"Notifications":{}}}`:            false,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","_META":{}}}`:                   false,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"Name":"b"}}}`:     true,
		`{"jsonrpc":"2.0","id":1,"method":"x","params":{"Other":1,"other":2}}`:                              true,
		`{"jsonrpc":"2.0","id":1,"result":{"Name":1,"name":2}}`:                                             true,
	} {
		if _, err := Parse([]byte(text)); (err == nil) != good {
			t.Errorf("%s: %v", text, err)
		}
	}
}
