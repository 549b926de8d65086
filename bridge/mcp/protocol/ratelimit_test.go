package protocol

import (
	"testing"
	"testing/synctest"
)

// Progress and log messages above the rate are dropped; other messages are not.
func TestFloods(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]int{Progress: int(ProgressLimit.Burst), LogMessage: int(ProgressLimit.Burst), ToolsChanged: 600, ResourceUpdated: 600} {
		synctest.Test(t, func(t *testing.T) {
			p := newPending("1", nil)
			for range 600 {
				p.add(Request("", method, nil))
			}
			p.add(Respond("1", struct{}{}))
			if n := len(p.queue); n != want+1 || !p.queue[n-1].IsResponse() {
				t.Errorf("%s: %d messages", method, n)
			}
		})
	}
}

// A message with members that differ only in case is invalid, because readers could interpret it differently.
func TestCaseVariantsAreRejected(t *testing.T) {
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
