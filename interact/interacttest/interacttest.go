// Package interacttest provides messages and checks for tests of the interaction model.
package interacttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

// Read returns a message that reads a property.
func Read(name string) *interact.Message { return message(interact.ReadProperty, name, "") }

// Write returns a message that writes a property.
func Write(name, data string) *interact.Message { return message(interact.WriteProperty, name, data) }

// Invoke returns a message that invokes an action.
func Invoke(name, input string) *interact.Message { return message(interact.InvokeAction, name, input) }

func message(t interact.Type, name, data string) *interact.Message {
	m := &interact.Message{Type: t, Thing: "thing", ID: "1", Name: name}
	if t != interact.ReadProperty {
		m.Data = []byte(data)
	}
	return m
}

// WantError returns the [*interact.Error] in err. The test ends if there is none with the code, and fails if it has no next step.
func WantError(t testing.TB, err error, code interact.Code) *interact.Error {
	t.Helper()
	e, ok := errors.AsType[*interact.Error](err)
	if !ok || e.Code != code {
		t.Fatalf("got %v, want an *interact.Error of code %s", err, code)
	}
	if e.Hint == "" && e.Next == nil && code != interact.Cancelled {
		t.Errorf("%s has no hint", e)
	}
	return e
}

// Text returns all text of an error.
func Text(e *interact.Error) string {
	issues, _ := json.Marshal(e.Issues)
	return fmt.Sprint(e.Error(), "\n", e.Hint, "\n", string(issues))
}
