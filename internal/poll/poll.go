// Package poll waits for conditions in tests.
package poll

import (
	"testing"
	"time"
)

// Until calls cond every few milliseconds until it returns true. After a minute it fails the test with what.
func Until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited for: %s", what)
		}
	}
}
