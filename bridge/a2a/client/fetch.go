package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/httpbody"
	"github.com/lmosd/lmosd/internal/netguard"
)

// maxRedirects limits the redirects of a card, which stay at its host.
const maxRedirects = 3

// Client returns an HTTP client for the agent that a user named by its URL. The host of the URL may have any address; other hosts, which
// its card may name, must be on the public internet.
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

// A Found is the received card of an agent, with its ETag (RFC 9110 §8.8.3).
type Found struct {
	Raw []byte
	Tag string
}

// Fetch fetches the card of the agent at target: that URL if it ends in .json, or else the well-known paths of 1.0 and of older versions.
// known is the result of an earlier Fetch, which is returned if the server reports no change. The error is an [*interact.Error].
func Fetch(ctx context.Context, client *http.Client, target *url.URL, auth func(*http.Request) error, known Found) (Found, error) {
	addresses := []string{target.String()}
	if !strings.HasSuffix(target.Path, ".json") {
		base := *target
		base.RawQuery, base.Fragment = "", ""
		at := strings.TrimSuffix(base.String(), "/")
		addresses = []string{at + "/.well-known/agent-card.json", at + "/.well-known/agent.json"}
	}
	var first error
	for _, address := range addresses {
		found, err := fetch(ctx, client, address, auth, known)
		if err == nil {
			return found, nil
		}
		first = cmp.Or(first, err)
	}
	return Found{}, first
}

func fetch(ctx context.Context, client *http.Client, address string, auth func(*http.Request) error, known Found) (Found, error) {
	limited, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(limited, http.MethodGet, address, nil)
	if err != nil {
		return Found{}, interact.Errorf(interact.Usage, "", "invalid URL %q", address).Then(interact.StepExpose, "a2a:https://agent.example")
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
	if ctx.Err() != nil {
		return Found{}, interact.AsError(ctx.Err()) // the caller has disconnected; the state of the agent is unknown
	}
	if err != nil {
		return Found{}, &interact.Error{Code: interact.Unreachable, Title: "no server responds at " + address, Hint: "is the agent running?",
			Err: err}
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusNotModified && known.Tag != "" {
		return known, nil
	}
	if answer.StatusCode != http.StatusOK {
		return Found{}, interact.Errorf(interact.AgentFailed,
			"use the URL below which it has /.well-known/agent-card.json, or the URL of its card",
			"%s responds with %d", address, answer.StatusCode)
	}
	raw, err := httpbody.ReadAll(answer.Body, answer.ContentLength, card.MaxCard)
	switch {
	case errors.Is(err, httpbody.ErrTooLarge):
		return Found{}, interact.Errorf(interact.TooLarge, "a card has at most 256 KiB", "the card at %s is too large", address)
	case err != nil:
		return Found{}, &interact.Error{Code: interact.Unreachable, Title: fmt.Sprintf("incomplete card at %s", address),
			Hint: "try again", Err: err}
	}
	return Found{raw, answer.Header.Get("ETag")}, nil
}
