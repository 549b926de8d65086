package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// ErrDeclined is the error of [Ask] when who was asked says no, or nothing.
var ErrDeclined = errors.New("who called it gave no answer")

// maxTries is how often one is asked whose answer does not fit.
const maxTries = 8

// RequiresInput declares that an action may require input from its caller ([Ask]) before it goes on. `lmosd call` then waits for the answer; others find it
// out.
func RequiresInput() Option {
	return func(about map[string]any) { about["lmosd:requiresInput"] = true }
}

type askerKey struct{}

// An asker is the run of an action that may ask. It is used in the goroutine of the run only.
type asker struct {
	parking *interact.Parking
	m       *interact.Message
	yield   func(*interact.Message, error) bool
	left    bool // the consumer has: nothing may be yielded any more
}

// withAsker lets an action ask.
func withAsker(ctx context.Context, a *asker) context.Context {
	return context.WithValue(ctx, askerKey{}, a)
}

// Ask asks who called the action that ctx belongs to, in words, for a T, and waits for it: an hour at most, since a run lasts no
// longer. A struct of texts, numbers and flags is what most can be shown as a form. What does not fit T is asked for again. The
// error is [ErrDeclined], that of ctx, or an [*interact.Error]: NotAllowed in a function that is no action, Invalid after eight
// bad answers. It must be called in the goroutine in which the action's function was.
func Ask[T any](ctx context.Context, message string) (T, error) {
	var v T
	schema, err := json.Marshal(schemaFor[T]())
	if err != nil {
		return v, err
	}
	in := interact.Input{Kind: interact.InputForm, Message: message, Schema: schema}
	for range maxTries {
		wrong, err := fill(ctx, in, &v)
		if wrong == "" {
			return v, err
		}
		in.Message = message + "\n" + wrong
	}
	return v, interact.Errorf(interact.Invalid, "answer with what its schema says", "no answer to %s fits", interact.Clip(message, 64))
}

// fill asks once. Where the answer does not fit it says why, for the next time.
func fill(ctx context.Context, in interact.Input, v any) (wrong string, err error) {
	answers, err := AskFor(ctx, interact.Inputs{"answer": in})
	if err != nil {
		return "", err
	}
	content := answers["answer"].Content
	if answers["answer"].Action != interact.Accept {
		return "", ErrDeclined
	}
	var schema, value any
	if err := json.Unmarshal(in.Schema, &schema); err != nil {
		return "", err
	}
	if err := json.Unmarshal(content, &value); err != nil {
		return "the answer is no JSON", nil
	}
	if issues := td.ParseSchema(schema).Check(value); len(issues) > 0 {
		return fmt.Sprint(issues[0].Pointer, " ", issues[0].Reason), nil
	}
	return "", json.Unmarshal(content, v)
}

// AskFor asks who called the action that ctx belongs to for several things at once, of any kind: an address to open, the words of
// a model. It is as [Ask], and the content of the answers is not checked.
func AskFor(ctx context.Context, in interact.Inputs) (interact.Answers, error) {
	a, ok := ctx.Value(askerKey{}).(*asker)
	if !ok || a.left {
		return nil, interact.Errorf(interact.NotAllowed, "ask with the context of an action", "nobody is there who could be asked")
	}
	answers, left, err := a.parking.Ask(ctx, a.m, in, a.yield)
	if left {
		a.left = true
		return nil, context.Canceled
	}
	return answers, err
}
