package client

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/netguard"
)

// maxRedirects bounds those of a card, which stay at its site.
const maxRedirects = 3

// Client returns a client for an agent that the user named by its address. Its host may be anywhere; other hosts, which its card
// may name, are on the public internet.
func Client(target *url.URL) *http.Client {
	named, public := netguard.Any(), netguard.Public()
	t := &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: 10 * time.Second,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if host, _, err := net.SplitHostPort(addr); err == nil && strings.EqualFold(host, target.Hostname()) {
				return named.DialContext(ctx, network, addr)
			}
			return public.DialContext(ctx, network, addr)
		}}
	return &http.Client{Transport: t, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		plain := via[0].URL.Scheme == "https" && r.URL.Scheme != "https"
		if len(via) > maxRedirects || r.URL.Host != via[0].URL.Host || r.Method != http.MethodGet || plain {
			return http.ErrUseLastResponse
		}
		return nil
	}}
}

// A Found is the card of an agent as it came, and what its server calls this state of it (ETag; RFC 9110 §8.8.3).
type Found struct {
	Raw []byte
	Tag string
}

// Fetch reads the card of the agent at target: there if it is the address of a card, else at the well-known places of 1.0, and of
// the time before. known is what was found before, which is returned if the server says that it is that still. The error is an
// [*interact.Error].
func Fetch(ctx context.Context, client *http.Client, target *url.URL, auth func(*http.Request) error, known Found) (Found, error) {
	places := []string{target.String()}
	if !strings.HasSuffix(target.Path, ".json") {
		base := *target
		base.RawQuery, base.Fragment = "", ""
		at := strings.TrimSuffix(base.String(), "/")
		places = []string{at + "/.well-known/agent-card.json", at + "/.well-known/agent.json"}
	}
	var first error
	for _, place := range places {
		found, err := fetch(ctx, client, place, auth, known)
		if err == nil {
			return found, nil
		}
		if first == nil {
			first = err
		}
	}
	return Found{}, first
}

func fetch(asks context.Context, client *http.Client, place string, auth func(*http.Request) error, known Found) (Found, error) {
	ctx, cancel := context.WithTimeout(asks, 30*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, place, nil)
	if err != nil {
		return Found{}, interact.Errorf(interact.Usage, "lmosd expose a2a:https://agent.example", "%q is no address", place)
	}
	q.Header.Set(protocol.VersionParam, "1.0")
	q.Header.Set("Accept", "application/json, application/a2a+json")
	if known.Tag != "" {
		q.Header.Set("If-None-Match", known.Tag)
	}
	if err := auth(q); err != nil {
		return Found{}, err
	}
	answer, err := client.Do(q)
	if asks.Err() != nil {
		return Found{}, interact.AsError(asks.Err()) // nobody waits any more: that says nothing of the agent
	}
	if err != nil {
		return Found{}, &interact.Error{Code: interact.Unreachable, Title: "nothing answers at " + place, Hint: "is the agent running?",
			Err: err}
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusNotModified && known.Tag != "" {
		return known, nil
	}
	if answer.StatusCode != http.StatusOK {
		return Found{}, interact.Errorf(interact.AgentFailed,
			"give the address under which it has /.well-known/agent-card.json, or that of its card",
			"%s answers %d", place, answer.StatusCode)
	}
	raw, err := io.ReadAll(io.LimitReader(answer.Body, protocol.MaxCard+1))
	switch {
	case err != nil:
		return Found{}, &interact.Error{Code: interact.Unreachable, Title: fmt.Sprintf("the card at %s broke off", place),
			Hint: "try again", Err: err}
	case len(raw) > protocol.MaxCard:
		return Found{}, interact.Errorf(interact.TooLarge, "a card has at most 256 KiB", "the card at %s is larger", place)
	}
	return Found{raw, answer.Header.Get("ETag")}, nil
}
