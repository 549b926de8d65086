package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/td"
)

const (
	// maxRetryAfter limits the pause of a Retry-After header.
	maxRetryAfter = 30 * time.Second
	// maxFailedPolls is the number of consecutive failed polls after which the action fails.
	maxFailedPolls = 3
)

// A task polls an action that the agent runs in the background (WoT Profile, HTTP Basic, asynchronous actions).
type task struct {
	client     *Client
	r          *request
	url        *url.URL // its status resource if it is resolved, else the URL of the request
	isResolved bool
	state      form.State
}

// task returns the background action of a response: 201 or 202 with an ActionStatus, or without a body and with a Location. Any other
// response is the output, and so is each response of an action that is declared synchronous.
func (a *answer) task(r *request) *task {
	if a.status != http.StatusCreated && a.status != http.StatusAccepted || r.synchronous != nil && *r.synchronous {
		return nil
	}
	s, isState := stateIn(a.data)
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

// follow yields the states of the task until the final one.
func (t *task) follow(ctx context.Context, yield func(*interact.Message) bool) error {
	whole := form.Task{Poller: t, Message: t.r.Message, What: t.r.What(), State: t.state, Pause: t.client.pause, KeepsNull: t.r.isPromised,
		ErrorText: func(e json.RawMessage) string { return quote(&t.r.Secrets, errorText(interact.JSON, e)) }, Log: t.client.log}
	return whole.Follow(ctx, yield)
}

// resolve resolves the address of the status. It must be at the origin of the agent, because the credentials are sent there.
func (t *task) resolve() error {
	if t.state.Href == "" {
		if !t.isResolved {
			return form.Broken(t.r.What(), "the action runs in the background without the address of its status")
		}
		return nil
	}
	to, err := t.url.Parse(t.state.Href)
	if err != nil || credentials.Origin(to) != credentials.Origin(t.url) {
		return form.Broken(t.r.What(), "the action runs in the background, and its status is at another origin")
	}
	to.User, to.Fragment = nil, ""
	t.url, t.state.Href, t.isResolved = to, "", true
	return nil
}

// Poll implements [form.Poller]. A poll that did not reach the agent is repeated, up to maxFailedPolls times.
func (t *task) Poll(ctx context.Context) (s form.State, after time.Duration, err error) {
	if err = t.resolve(); err != nil {
		return s, 0, err
	}
	pauses := backoff.Backoff{First: t.client.pause}
	for try := 1; ; try++ {
		ans, err := t.send(ctx, http.MethodGet)
		if err == nil {
			s, err = t.update(ans)
			return s, retryAfter(ans.header.Get("Retry-After")), err
		}
		if try == maxFailedPolls || interact.AsError(err).Code != interact.Unreachable {
			return s, 0, err
		}
		if err := pauses.Sleep(ctx); err != nil {
			return s, 0, t.Lost(ctx, err)
		}
	}
}

// Lost implements [form.Poller].
func (t *task) Lost(ctx context.Context, err error) error { return t.r.lost(ctx, err) }

func (t *task) update(ans *answer) (form.State, error) {
	s, ok := stateIn(ans.data)
	if !ok {
		return s, form.Broken(t.r.What(), "the action runs in the background, and its status is "+sample(ans.media, ans.data, &t.r.Secrets))
	}
	t.state = s
	return s, nil
}

// stateIn reads a state of the WoT Profile, which has no member "state".
func stateIn(data []byte) (s form.State, ok bool) {
	ok = json.Unmarshal(data, &s) == nil
	s.State = ""
	return s, ok && s.Of() != interact.StatusNone
}

// send requests the status resource, with the credentials of the form that started the action.
func (t *task) send(ctx context.Context, method string) (*answer, error) {
	to := *t.url
	req, err := newRequest(ctx, t.r, method, &to, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", interact.JSON)
	t.r.Secrets.Apply(req.Header, req.URL)
	status := t.r.over(&td.Form{Href: t.r.Form.Href, ResponseType: interact.JSON}) // independent of the response type of the action
	status.isPromised = method == http.MethodGet
	return t.client.exchange(ctx, status, req)
}

// Cancel implements [form.Poller].
func (t *task) Cancel(ctx context.Context) error {
	if err := t.resolve(); err != nil {
		return err
	}
	_, err := t.send(ctx, http.MethodDelete)
	return err
}

// retryAfter reads the seconds of RFC 9110 §10.2.3; a date or an invalid value is zero.
func retryAfter(value string) time.Duration {
	seconds, err := strconv.Atoi(value)
	if err != nil || seconds < 0 {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, maxRetryAfter)
}
