package openai

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// endpoint starts an endpoint and returns a client of it.
func endpoint(t *testing.T, o Options, answer http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	o.URL, o.Model = s.URL+"/v1/", "small"
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.pause = time.Millisecond
	return c
}

// embedder answers with a vector of each text's length and 1, the last text first.
func embedder(t *testing.T, asked *atomic.Int32) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Model  string
			Input  []string
			Format string `json:"encoding_format"`
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.Model != "small" || q.Format != "float" || r.URL.Path != "/v1/embeddings" {
			t.Errorf("requested %s for %+v, %v", r.URL, q, err)
		}
		asked.Add(1)
		var data []map[string]any
		for i, text := range slices.Backward(q.Input) {
			data = append(data, map[string]any{"index": i, "embedding": []int{len(text), 1}})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"data": data})
	}
}

func TestEmbed(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	c := endpoint(t, Options{}, embedder(t, &asked))
	texts := make([]string, maxTexts+2)
	for i := range texts {
		texts[i] = strings.Repeat("x", i)
	}
	texts[maxTexts+1] = strings.Repeat("y", 2*maxText)
	vectors, err := c.Embed(t.Context(), texts)
	if err != nil || len(vectors) != len(texts) || asked.Load() != 2 {
		t.Fatalf("%d vectors by %d requests, %v", len(vectors), asked.Load(), err)
	}
	for i, v := range vectors {
		length := math.Hypot(float64(v[0]), float64(v[1]))
		if want := min(len(texts[i]), maxText); math.Abs(length-1) > 1e-6 || math.Abs(float64(v[0]/v[1])-float64(want)) > 0.01*float64(want) {
			t.Errorf("text %d: got %v", i, v)
		}
	}
	if none, err := c.Embed(t.Context(), nil); err != nil || len(none) != 0 || asked.Load() != 2 {
		t.Errorf("of no text: %v, %v", none, err)
	}
}

func TestComplete(t *testing.T) {
	t.Parallel()
	c := endpoint(t, Options{Key: "sesame"}, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		want := `{"messages":[{"role":"system","content":"Choose."},{"role":"user","content":"Hi"}],"model":"small",` +
			`"response_format":{"type":"json_object"},"stream":false,"temperature":0}`
		if string(body) != want || r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer sesame" {
			t.Errorf("requested %s, %q: %s", r.URL, r.Header, body)
		}
		fmt.Fprint(w, `{"choices":[{"message":{"role":"assistant","content":"{\"agentId\":null}"}}]}`)
	})
	got, err := c.Complete(t.Context(), []Turn{{System, "Choose."}, {User, "Hi"}}, true)
	if err != nil || got != `{"agentId":null}` {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestBadAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer string
		status int
		want   string
		asked  int32
	}{
		"no JSON":              {"<html>", 200, "not its JSON", 1},
		"no vector":            {`{"data":[]}`, 200, "0 vectors for 2", 1},
		"one twice":            {`{"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[1]}]}`, 200, "for no text", 1},
		"an index beyond":      {`{"data":[{"index":2,"embedding":[1]}]}`, 200, "for no text", 1},
		"an index below":       {`{"data":[{"index":-1,"embedding":[1]}]}`, 200, "for no text", 1},
		"no direction":         {`{"data":[{"index":0,"embedding":[0,0]}]}`, 200, "a vector that is none", 1},
		"an empty one":         {`{"data":[{"index":0,"embedding":[]}]}`, 200, "a vector that is none", 1},
		"too long":             {`{"data":[{"index":0,"embedding":[` + strings.Repeat("1,", maxDimensions) + `1]}]}`, 200, "a vector that is none", 1},
		"different dimensions": {`{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":[1,2]}]}`, 200, "a vector that is none", 1},
		"a refusal":            {`{"error":{"message":"wrong\nkey sesame"}}`, 401, "refused with 401: wrong key …", 1},
		"a redirect":           {``, 307, "refused with 307", 1},
		"busy":                 {`{}`, 429, "refused with 429", attempts},
		"down":                 {``, 503, "refused with 503", attempts},
		"too large":            {strings.Repeat(" ", maxAnswer+1), 200, "more than", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			client := endpoint(t, Options{Key: "sesame"}, func(w http.ResponseWriter, _ *http.Request) {
				asked.Add(1)
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.answer)
			})
			_, err := client.Embed(t.Context(), []string{"a", "b"})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "sesame") || asked.Load() != c.asked {
				t.Errorf("%d requests, got %v", asked.Load(), err)
			}
		})
	}
}

// A request to a busy endpoint is retried, not before Retry-After.
func TestBusyEndpointIsRetried(t *testing.T) {
	t.Parallel()
	var asked, embedded atomic.Int32
	answer := embedder(t, &embedded)
	c := endpoint(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		switch asked.Add(1) {
		case 1:
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusServiceUnavailable)
		case 2:
			panic(http.ErrAbortHandler)
		default:
			answer(w, r)
		}
	})
	if _, err := c.Embed(t.Context(), []string{"a"}); err != nil || asked.Load() != 3 {
		t.Errorf("%d requests: %v", asked.Load(), err)
	}
	late := endpoint(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	if _, err := late.Embed(t.Context(), []string{"a"}); err == nil || asked.Load() != 4 {
		t.Errorf("an hour is waited for: %v", err)
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	c := endpoint(t, Options{Timeout: 20 * time.Millisecond}, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the server detects a disconnect only after the body
		<-r.Context().Done()
	})
	if _, err := c.Complete(t.Context(), nil, false); err == nil || !strings.Contains(err.Error(), "in time") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Complete(ctx, nil, false); err == nil {
		t.Error("a cancelled question is answered")
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "localhost:80", "ftp://a/v1", "http://user:secret@a/v1", "http://a/v1?key=secret", "http://", "\n"} {
		if _, err := New(Options{URL: address, Model: "m"}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", address, err)
		}
	}
	if _, err := New(Options{URL: "http://a"}); err == nil {
		t.Error("no model")
	}
}
