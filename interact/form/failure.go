package form

import (
	"context"
	"errors"

	"github.com/lmosd/lmosd/interact"
)

// Ended is the error of an interaction whose context has ended, with what names the affordance; nil if it has not.
func Ended(ctx context.Context, what, href string) *interact.Error {
	switch err := ctx.Err(); {
	case errors.Is(err, context.Canceled):
		return &interact.Error{Code: interact.Cancelled, Title: what + " was cancelled", Err: err}
	case err != nil:
		return &interact.Error{Code: interact.Timeout, Title: what + " gave no answer in time (agent at " + Plain(href) + ")",
			Hint: interact.BusyHint, Next: interact.MoreTime(), Err: err}
	}
	return nil
}

// Unreachable is the error of an agent without a connection.
func Unreachable(what, href, reason string) *interact.Error {
	return interact.Errorf(interact.Unreachable, "start the agent, or publish its new address",
		"%s cannot be reached at %s: %s", what, Plain(href), reason).Then(interact.StepPublish)
}

// Broken returns the error of an unusable response.
func Broken(what, why string) error {
	return interact.Errorf(interact.AgentFailed, "see the agent's log, or correct its description",
		"the answer of %s cannot be used: %s", what, why)
}
