package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/td"
)

// Pauses between two looks at a background action grow from the client's first to maxPause. An agent's Retry-After counts
// up to maxRetryAfter.
const (
	maxPause      = 2 * time.Second
	maxRetryAfter = 30 * time.Second
	// misses is how many looks in a row may fail before the action is given up.
	misses = 3
	// farewell is how long the DELETE of an abandoned action may take.
	farewell = 2 * time.Second
)

// A task is an action that the agent runs in the background (WoT Profile, HTTP Basic, asynchronous actions).
type task struct {
	client *Client
	r      *request
	url    *url.URL // its status resource, once aimed; before that what was asked
	aimed  bool
	state  state
}

// A state is the ActionStatus of the profile.
type state struct {
	Status string          `json:"status"`
	Output json.RawMessage `json:"output"`
	Error  json.RawMessage `json:"error"`
	Href   string          `json:"href"`
}

// task returns the background action that an answer announces: 201 or 202 with an ActionStatus, or without a body and
// with a Location. Anything else is the output itself; so is every answer of an action that calls itself synchronous.
func (a *answer) task(r *request) *task {
	if a.status != http.StatusCreated && a.status != http.StatusAccepted || r.synchronous != nil && *r.synchronous {
		return nil
	}
	var s state
	isState := json.Unmarshal(a.data, &s) == nil && interact.StatusOf(s.Status) != interact.StatusNone
	if !isState && len(a.data) > 0 {
		return nil
	}
	if s.Href == "" {
		s.Href = a.header.Get("Location")
	}
	if s.Href == "" && !isState {
		return nil
	}
	if !isState {
		s.Status = "pending"
	}
	return &task{client: a.client, r: r, url: a.url, state: s}
}

// follow yields each new state until the final one. If the consumer leaves or its time is up, the action is cancelled
// at the agent.
func (t *task) follow(ctx context.Context, yield func(*interact.Message, error) bool) error {
	final, err := t.run(ctx, func(s interact.Status) bool {
		m := t.r.message.Reply(interact.ActionStatus, "", nil)
		m.Status = s
		return yield(m, nil)
	})
	if err == errLeft || err != nil && ctx.Err() != nil {
		t.abandon(ctx)
	}
	if err != nil && err != errLeft {
		e := *interact.AsError(err)
		e.Begun = true // whatever a look at it met
		return &e
	}
	if err == nil {
		yield(final, nil)
	}
	return err
}

// errLeft says that nobody listens any more.
var errLeft = fmt.Errorf("the consumer left: %w", context.Canceled)

// run looks at the task until it ends, and tells each change.
func (t *task) run(ctx context.Context, tell func(interact.Status) bool) (*interact.Message, error) {
	told := interact.StatusNone
	after := ""
	for pauses := (backoff.Backoff{First: t.client.pause, Max: maxPause}); ; {
		s := interact.StatusOf(t.state.Status)
		if s > interact.StatusRunning {
			return t.end(s)
		}
		if s != told && !tell(s) {
			return nil, errLeft
		}
		told = s
		if err := t.aim(); err != nil {
			return nil, err
		}
		if err := backoff.Sleep(ctx, max(pauses.Next(), retryAfter(after))); err != nil {
			return nil, t.r.lost(ctx, err)
		}
		var err error
		if after, err = t.look(ctx); err != nil {
			return nil, err
		}
	}
}

// end makes the last message of a task, or its error.
func (t *task) end(s interact.Status) (*interact.Message, error) {
	switch s {
	case interact.StatusCompleted:
		output := trimJSON(t.state.Output)
		if string(output) == "null" && !t.r.promised {
			output = nil
		}
		return finished(t.r.message, interact.JSON, output), nil
	case interact.StatusCancelled:
		return nil, &interact.Error{Code: interact.Cancelled, Remote: true, Hint: "see who else can cancel it",
			Title: t.r.what() + " was cancelled at the agent"}
	}
	title := t.r.what() + " failed"
	if why := quote(&t.r.secrets, words(interact.JSON, t.state.Error)); why != "" && why != "null" {
		title += ": " + why
	}
	return nil, &interact.Error{Code: interact.AgentFailed, Remote: true, Title: title, Hint: "see the agent's log"}
}

// aim resolves the address of the status. It must be at the agent's own origin: the credentials go there.
func (t *task) aim() error {
	if t.state.Href == "" {
		if !t.aimed {
			return broken(t.r, "it runs in the background, and nothing says where its status is")
		}
		return nil
	}
	to, err := t.url.Parse(t.state.Href)
	if err != nil || credentials.Origin(to) != credentials.Origin(t.url) {
		return broken(t.r, "it runs in the background, and its status is at another origin")
	}
	to.User, to.Fragment = nil, ""
	t.url, t.state.Href, t.aimed = to, "", true
	return nil
}

// look asks for the state. A look that fails may be tried again, misses times.
func (t *task) look(ctx context.Context) (retryAfter string, err error) {
	pauses := backoff.Backoff{First: t.client.pause}
	for try := 1; ; try++ {
		var ans *answer
		ans, err = t.send(ctx, http.MethodGet)
		if err == nil {
			return ans.header.Get("Retry-After"), t.update(ans)
		}
		if try == misses || interact.AsError(err).Code != interact.Unreachable {
			return "", err
		}
		if err := pauses.Sleep(ctx); err != nil {
			return "", t.r.lost(ctx, err)
		}
	}
}

func (t *task) update(ans *answer) error {
	var s state
	if json.Unmarshal(ans.data, &s) != nil || interact.StatusOf(s.Status) == interact.StatusNone {
		return broken(t.r, "it runs in the background, and its status is "+sample(ans.media, ans.data, &t.r.secrets))
	}
	t.state = s
	return nil
}

// send asks the status resource, with the secrets of the form that started the action.
func (t *task) send(ctx context.Context, method string) (*answer, error) {
	to := *t.url
	req, err := newRequest(ctx, t.r, method, &to, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", interact.JSON)
	t.r.secrets.Apply(req.Header, req.URL)
	status := *t.r
	status.promised = method == http.MethodGet
	status.form = &td.Form{Href: t.r.form.Href, ResponseType: interact.JSON} // whatever the action's own answer is
	return t.client.exchange(ctx, &status, req)
}

// abandon cancels the action at the agent, after ctx has ended.
func (t *task) abandon(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	if err := t.aim(); err != nil {
		return
	}
	_, err := t.send(ctx, http.MethodDelete)
	t.client.log.Debug("action cancelled", "thing", t.r.thing.ID, "action", t.r.message.Name, "err", err)
}

// retryAfter reads the seconds of RFC 9110 §10.2.3; a date or nonsense is nothing.
func retryAfter(value string) time.Duration {
	seconds, err := strconv.Atoi(value)
	if err != nil || seconds < 0 {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, maxRetryAfter)
}
