package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// ErrDeclined is the error of [Ask] if the caller declines or cancels.
var ErrDeclined = errors.New("the caller declined to provide input")

// maxTries limits the requests for valid input.
const maxTries = 8

// RequiresInput declares that an action may require input from its caller ([Ask]). `lmosd call` then waits for the request.
func RequiresInput() Option {
	return func(about map[string]any) { about["lmosd:requiresInput"] = true }
}

type runKey struct{}

// An actionRun is a run of an action, which may require input. Only the goroutine of the run uses it.
type actionRun struct {
	inputs *interact.InputWaiter
	m      *interact.Message
	yield  func(*interact.Message, error) bool
	left   bool // the consumer left: yield must not be called
}

// withRun returns the context of a run.
func withRun(ctx context.Context, r *actionRun) context.Context {
	return context.WithValue(ctx, runKey{}, r)
}

// Ask requests a T from the caller of the action of ctx, with a message, and waits for it, at most 1 h, the maximal duration of a run. Most
// clients can show a struct of strings, numbers and booleans as a form. Ask requests input that does not match T again. The error is
// [ErrDeclined], that of ctx, or an [*interact.Error]: NotAllowed outside of an action, Invalid after 8 invalid answers. Ask must be called
// in the goroutine of the action.
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
	return v, interact.Errorf(interact.Invalid, "send input that matches the schema", "no answer to %s was valid", interact.Clip(message, 64))
}

// fill requests the input once. If the answer is invalid, wrong is the reason.
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
		return "the answer is not JSON", nil
	}
	if issues := td.ParseSchema(schema).Check(value); len(issues) > 0 {
		return fmt.Sprint(issues[0].Pointer, " ", issues[0].Reason), nil
	}
	return "", json.Unmarshal(content, v)
}

// AskFor requests several inputs of any kind from the caller, such as a URL to open or the output of a model. It is like [Ask], but does
// not check the content of the answers.
func AskFor(ctx context.Context, in interact.Inputs) (interact.Answers, error) {
	r, ok := ctx.Value(runKey{}).(*actionRun)
	if !ok || r.left {
		return nil, interact.Errorf(interact.NotAllowed, "call it with the context of an action", "no caller is available to provide input")
	}
	answers, left, err := r.inputs.Ask(ctx, r.m, in, r.yield)
	if left {
		r.left = true
		return nil, context.Canceled
	}
	return answers, err
}
