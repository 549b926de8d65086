package form

import (
	"context"
	"errors"

	"github.com/lmosd/lmosd/interact"
)

// Ended returns the error of an interaction whose context has ended, with what as the name of the affordance; nil if ctx has not ended.
func Ended(ctx context.Context, what, href string) *interact.Error {
	switch err := ctx.Err(); {
	case errors.Is(err, context.Canceled):
		return &interact.Error{Code: interact.Cancelled, Title: what + " was cancelled", Err: err}
	case err != nil:
		return &interact.Error{Code: interact.Timeout, Title: what + ": no response in time (agent at " + Plain(href) + ")",
			Hint: interact.BusyHint, Next: interact.MoreTime(), Err: err}
	}
	return nil
}

// Unreachable returns the error of an agent without a connection.
func Unreachable(what, href, reason string) *interact.Error {
	return interact.Errorf(interact.Unreachable, "start the agent, or publish its new address",
		"%s cannot be reached at %s: %s", what, Plain(href), reason).Then(interact.StepPublish)
}

// Broken returns the error of an unusable response.
func Broken(what, why string) error {
	return interact.Errorf(interact.AgentFailed, "see the agent's log, or correct its description",
		"unusable response of %s: %s", what, why)
}
