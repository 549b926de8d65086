package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// MaxTries is the number of Things that one call by capability tries.
const MaxTries = 3

// Choose returns the Things that provide the one capability of q itself, in its version and with its action, in the order in which a caller should
// try them: at most 20, each with its Choice. An empty trust is [TrustOwn]. The node searches for at most timeout; zero means 2 s. The error is
// [interact.NotFound] if there is none; its hint states which trust would find some.
func (c *Client) Choose(ctx context.Context, q td.Query, t Trust, timeout time.Duration) (*AgentList, error) {
	v := findValues(q, timeout)
	v.Set("order", "call")
	if t != "" {
		v.Set("trust", string(t))
	}
	list, err := get[AgentList](ctx, c, "/v1/find?"+v.Encode())
	if err == nil && len(list.Items) == 0 {
		return nil, notProvided(q, list.LeftOut)
	}
	return list, err
}

// notProvided returns the error for a capability that no trusted Thing provides.
func notProvided(q td.Query, out *LeftOut) error {
	what := strings.Join(q.Capability, " ")
	e := &interact.Error{Code: interact.NotFound, Hint: "see which agents have a part of it", Next: interact.Next(interact.StepFind, "capability:"+what)}
	if q.Version != "" {
		what += " in a version of " + q.Version
	}
	if q.Action != "" {
		what += " with the action " + q.Action
	}
	e.Title = "no agent provides " + what
	if out == nil {
		return e
	}
	e.Title = "no trusted agent provides " + what
	var others []string
	e.Next = nil
	if out.Partner > 0 {
		others, e = append(others, fmt.Sprintf("of partners (%d)", out.Partner)), e.Then(interact.StepOption, "trust", string(TrustPartner))
	}
	if out.Any > 0 {
		others, e = append(others, fmt.Sprintf("of other owners (%d)", out.Any)), e.Then(interact.StepOption, "trust", string(TrustAny))
	}
	e.Hint = "agents " + strings.Join(others, " and ") + " provide it"
	return e.Then(interact.StepFind, "capability:"+strings.Join(q.Capability, " "))
}

// InvokeFirst invokes an action of the first of the candidates that answers, in the order of [Client.Choose], and returns that candidate; after an
// error, the last one that was tried. It tries at most [MaxTries]. The next one is tried only if the action certainly did not start at the one before, or is
// safe or idempotent by its description. An input that is a Stream is sent once. A Key holds at each candidate alone. Beyond 3 per second, further tries are at most a tenth of the calls.
// Without candidates the error is [interact.NotFound].
func (c *Client) InvokeFirst(ctx context.Context, candidates []Agent, action string, o CallOptions) (*CallResult, *Agent, error) {
	c.retries.Call(time.Now())
	var failed []string
	started := false
	for i := range candidates {
		a := &candidates[i]
		r, err := c.Invoke(ctx, a.Ref, action, o)
		if err == nil {
			return r, a, nil
		}
		e := *interact.AsError(err)
		started = started || e.Started
		repeatable := o.Stream == nil && a.Choice != nil && a.Choice.Repeatable
		last := i+1 == min(len(candidates), MaxTries)
		if last || ctx.Err() != nil || o.Stream != nil || !mayTryNext(&e, repeatable) || !c.retries.Take(time.Now()) {
			if len(failed) == 0 {
				return nil, a, err
			}
			before := "tried before: " + strings.Join(failed, "; ")
			if e.Title, e.Started = a.Name+": "+cmp.Or(e.Title, e.Code.Title()), started; e.Err != nil {
				e.Err = fmt.Errorf("%w; %s", e.Err, before)
			} else {
				e.Err = errors.New(before)
			}
			return nil, a, &e
		}
		failed = append(failed, a.Name+": "+e.Error())
	}
	return nil, nil, interact.Errorf(interact.NotFound, "", "there is no agent to call").Then(interact.StepFind)
}

// mayTryNext reports whether another Thing may be called after err: the action did not start, or may run twice.
func mayTryNext(err *interact.Error, repeatable bool) bool {
	switch err.Code {
	case interact.Timeout, interact.AgentFailed, interact.Internal:
		return repeatable
	}
	return err.MayMove(&interact.Message{Type: interact.InvokeAction}, repeatable)
}
