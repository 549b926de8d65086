// Package openai is a client of OpenAI-compatible APIs: embeddings and chat completions. Hosted services and local
// programs (Ollama, llama.cpp, vLLM) implement them. The operator chooses the address.
package openai

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/httpbody"
)

// Limits of one request.
const (
	// maxTexts is the number of texts per request; more texts take several requests, one after the other.
	maxTexts = 64
	// maxText is the number of bytes of a text that are sent.
	maxText = 8 << 10
	// maxDimensions limits the length of a vector.
	maxDimensions = 8192

	maxAnswer = 32 << 20
	maxWords  = 512 // bytes of the endpoint's message in an error
	attempts  = 3
	maxPause  = 5 * time.Second
)

// Options configure a [Client].
type Options struct {
	// URL is the base of the API, such as "http://127.0.0.1:11434/v1".
	URL string
	// Model is the name of the model, at the endpoint.
	Model string
	// Key is sent as a bearer token, if not empty. Errors never contain it.
	Key string
	// Timeout limits one call, with all its attempts; zero means 10 s. A context may end it earlier.
	Timeout time.Duration
}

// A Client calls one endpoint. It is safe for concurrent use.
type Client struct {
	o    Options
	base string
	http http.RoundTripper
	// pause is the time before the second attempt; the third waits twice as long.
	pause time.Duration
}

// New returns a client, or an error if the URL is invalid.
func New(o Options) (*Client, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" {
		return nil, fmt.Errorf("expected the URL of an API, such as http://127.0.0.1:11434/v1, got %q", plain(o.URL))
	}
	if o.Model == "" {
		return nil, errors.New("the name of the model is missing")
	}
	o.Timeout = cmp.Or(max(o.Timeout, 0), 10*time.Second)
	return &Client{o: o, base: strings.TrimSuffix(o.URL, "/"), pause: 250 * time.Millisecond,
		http: &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second}}, nil
}

// plain returns a URL without secrets.
func plain(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "the address"
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

// Close closes connections that are not in use.
func (c *Client) Close() {
	if t, ok := c.http.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// Model returns the name of the model.
func (c *Client) Model() string { return c.o.Model }

// Embed returns a vector of length 1 for each text, in their order (POST /embeddings). All have the same dimension.
func (c *Client) Embed(ctx context.Context, texts []string) ([][]float32, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	all := make([][]float32, 0, len(texts))
	for len(texts) > 0 {
		part := texts[:min(len(texts), maxTexts)]
		texts = texts[len(part):]
		vectors, err := c.embed(ctx, part)
		if err != nil {
			return nil, err
		}
		if all = append(all, vectors...); len(all[0]) != len(vectors[0]) {
			return nil, c.nonsense("vectors of different dimensions")
		}
	}
	return all, nil
}

func (c *Client) embed(ctx context.Context, texts []string) ([][]float32, error) {
	cut := make([]string, len(texts))
	for i, text := range texts {
		cut[i] = strings.ToValidUTF8(text[:min(len(text), maxText)], "")
	}
	var answer struct {
		Data []struct {
			Index     int       `json:"index"`
			Embedding []float32 `json:"embedding"`
		} `json:"data"`
	}
	if err := c.post(ctx, "/embeddings", map[string]any{"model": c.o.Model, "input": cut, "encoding_format": "float"}, &answer); err != nil {
		return nil, err
	}
	vectors := make([][]float32, len(texts))
	for _, d := range answer.Data {
		switch {
		case d.Index < 0 || d.Index >= len(vectors) || vectors[d.Index] != nil:
			return nil, c.nonsense("a vector for no text")
		case len(d.Embedding) > maxDimensions, len(d.Embedding) != len(answer.Data[0].Embedding), !unit(d.Embedding):
			return nil, c.nonsense("a vector that is none")
		}
		vectors[d.Index] = d.Embedding
	}
	if len(answer.Data) != len(texts) {
		return nil, c.nonsense(fmt.Sprintf("%d vectors for %d texts", len(answer.Data), len(texts)))
	}
	return vectors, nil
}

// unit scales v to the length 1. It returns false for a zero or invalid vector.
func unit(v []float32) bool {
	var sum float64
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	length := math.Sqrt(sum)
	if length == 0 || math.IsNaN(length) || math.IsInf(length, 0) {
		return false
	}
	for i := range v {
		v[i] = float32(float64(v[i]) / length)
	}
	return true
}

// A Role is the author of a message.
type Role string

// The roles of a conversation.
const (
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
)

// A Turn is one message of a conversation.
type Turn struct {
	Role    Role   `json:"role"`
	Content string `json:"content"`
}

// Complete returns the next message of the model, as one JSON object if object is set (POST /chat/completions, temperature 0).
func (c *Client) Complete(ctx context.Context, turns []Turn, object bool) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	question := map[string]any{"model": c.o.Model, "messages": turns, "temperature": 0, "stream": false}
	if object {
		question["response_format"] = map[string]string{"type": "json_object"}
	}
	var answer struct {
		Choices []struct {
			Message Turn `json:"message"`
		} `json:"choices"`
	}
	if err := c.post(ctx, "/chat/completions", question, &answer); err != nil {
		return "", err
	}
	if len(answer.Choices) == 0 || answer.Choices[0].Message.Content == "" {
		return "", c.nonsense("no choice")
	}
	return answer.Choices[0].Message.Content, nil
}

func (c *Client) nonsense(what string) error {
	return fmt.Errorf("%s answered with %s; check that it implements the OpenAI API, and that the model %q supports this", plain(c.base), what, c.o.Model)
}

// A busyError means that a later request may succeed.
type busyError struct {
	error
	after time.Duration // from Retry-After; 0 without one
}

// post sends a request, and retries while the endpoint is busy.
func (c *Client) post(ctx context.Context, path string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	pauses := backoff.Backoff{First: c.pause, Jitter: 0.5}
	for attempt := 1; ; attempt++ {
		err := c.once(ctx, path, body, answer)
		var busy busyError
		if !errors.As(err, &busy) || attempt == attempts {
			return err
		}
		wait := max(busy.after, pauses.Next())
		if until, ok := ctx.Deadline(); wait > maxPause || ok && time.Until(until) < wait {
			return err
		}
		if backoff.Sleep(ctx, wait) != nil {
			return err
		}
	}
}

func (c *Client) once(ctx context.Context, path string, body []byte, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	if c.o.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.o.Key)
	}
	resp, err := c.http.RoundTrip(req)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s did not answer in time: %w", plain(c.base), ctx.Err())
	case err != nil:
		return busyError{error: fmt.Errorf("%s cannot be reached: %w", plain(c.base), err)}
	}
	defer resp.Body.Close()
	raw, err := httpbody.ReadAll(resp.Body, resp.ContentLength, maxAnswer)
	isTooLarge := errors.Is(err, httpbody.ErrTooLarge)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s did not answer in time: %w", plain(c.base), ctx.Err())
	case err != nil && !isTooLarge:
		return busyError{error: fmt.Errorf("reading the response of %s failed: %w", plain(c.base), err)}
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable:
		return busyError{c.refused(resp.StatusCode, raw), retryAfter(resp.Header)}
	case resp.StatusCode != http.StatusOK:
		return c.refused(resp.StatusCode, raw)
	case isTooLarge:
		return c.nonsense(fmt.Sprintf("more than %d bytes", maxAnswer))
	}
	if err := json.Unmarshal(raw, answer); err != nil {
		return c.nonsense("something that is not its JSON")
	}
	return nil
}

// refused returns the message of the endpoint, without the key that it may contain.
func (c *Client) refused(status int, raw []byte) error {
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	text := ""
	if json.Unmarshal(raw, &body) == nil {
		text = strings.Join(strings.Fields(body.Error.Message), " ")
	}
	if c.o.Key != "" {
		text = strings.ReplaceAll(text, c.o.Key, "…")
	}
	if text = strings.ToValidUTF8(text[:min(len(text), maxWords)], ""); text != "" {
		text = ": " + text
	}
	return fmt.Errorf("%s refused with %d%s", plain(c.base), status, text)
}

// retryAfter returns the time in the header Retry-After, if it is in seconds.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.ParseUint(strings.TrimSpace(h.Get("Retry-After")), 10, 16)
	if err != nil {
		return 0
	}
	return time.Duration(seconds) * time.Second
}
