package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/lmosd/lmosd/interact"
)

// listeners are the actions of an agent that read their input as it arrives.
func listeners() []Part {
	return []Part{
		Action("count", func(_ context.Context, in Chunks) (string, error) {
			n := 0
			for chunk, err := range in.All() {
				if err != nil {
					return "", err
				}
				n += len(chunk)
			}
			return fmt.Sprintf("%d of %s", n, in.ContentType), nil
		}),
		Action("read", func(_ context.Context, in Chunks) (string, error) {
			if err := iotest.TestReader(in.Reader(), []byte("one two")); err != nil {
				return "", err
			}
			return in.ContentType, nil
		}),
		Action("head", func(_ context.Context, in Chunks) (Data, error) {
			b := make([]byte, 2)
			_, err := io.ReadFull(in.Reader(), b)
			return Data{"audio/wav", b}, err
		}),
		Stream("echo", func(_ context.Context, in Chunks) iter.Seq2[Data, error] {
			return func(yield func(Data, error) bool) {
				for chunk, err := range in.All() {
					if !yield(Data{Bytes: chunk}, err) {
						return
					}
				}
			}
		}),
		Action("text", func(_ context.Context, in string) (string, error) { return in, nil }),
	}
}

func TestChunks(t *testing.T) {
	t.Parallel()
	raw, thing, err := New(Agent{Name: "ear"}, listeners()...)
	if err != nil {
		t.Fatal(err)
	}
	d := described(t, raw)
	for _, name := range []string{"count", "echo", "head"} {
		if a := d.Actions[name]; a.Input != nil || name != "count" && a.Output != nil {
			t.Errorf("%s has a schema: %s", name, raw)
		}
	}
	thing = interact.Chain(thing, interact.Checked(d), interact.CheckedReplies(d))
	broken := errors.New("the microphone failed")
	for name, c := range map[string]struct {
		action, media, data string // of a whole input
		chunks              []string
		err                 error
		want                string
		code                interact.Code
	}{
		"in chunks":                {"count", "audio/wav", "", []string{"one", " ", "two"}, nil, `"7 of audio/wav"`, 0},
		"without a type":           {"count", "", "", []string{"one"}, nil, `"3 of application/octet-stream"`, 0},
		"none":                     {"count", "audio/wav", "", []string{}, nil, `"0 of audio/wav"`, 0},
		"whole":                    {"count", "audio/wav", "one", nil, nil, `"3 of audio/wav"`, 0},
		"nothing":                  {"count", "", "", nil, nil, `"0 of application/json"`, 0},
		"as a reader":              {"read", "text/plain", "", []string{"one", "", " ", "two"}, nil, `"text/plain"`, 0},
		"a whole as a reader":      {"read", "text/plain", "one two", nil, nil, `"text/plain"`, 0},
		"partly read":              {"head", "", "", []string{"o", "ne", "more"}, nil, "audio/wav: on", 0},
		"too short":                {"head", "", "", []string{"o"}, nil, "", interact.AgentFailed},
		"both ways":                {"echo", "", "", []string{"one", "two"}, nil, "application/octet-stream: onetwo", 0},
		"the source fails":         {"count", "", "", []string{"one"}, broken, "", interact.AgentFailed},
		"the source fails, reader": {"head", "", "", []string{"o"}, broken, "", interact.AgentFailed},
		"not accepted":             {"text", "audio/wav", "", []string{"one"}, nil, "", interact.NotAllowed},
	} {
		m := &interact.Message{Type: interact.InvokeAction, ID: "m", Name: c.action, ContentType: c.media, Data: []byte(c.data)}
		left := c.chunks == nil || c.action == "text"
		if c.chunks != nil {
			m.Chunks = func(yield func([]byte, error) bool) {
				defer func() { left = true }()
				for _, chunk := range c.chunks {
					if !yield([]byte(chunk), nil) {
						return
					}
				}
				if c.err != nil {
					yield(nil, c.err)
				}
			}
		}
		r, err := interact.Call(t.Context(), thing, m)
		switch {
		case !left:
			t.Errorf("%s: the source has not ended", name)
		case c.code != 0:
			if e := interact.AsError(err); e == nil || e.Code != c.code {
				t.Errorf("%s: got %v, want %v", name, err, c.code)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		default:
			if got := string(r.Data); got != c.want && r.ContentType+": "+got != c.want {
				t.Errorf("%s: got %s %s, want %s", name, r.ContentType, got, c.want)
			}
		}
	}
	if n, err := (Chunks{}).Reader().Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("outside of a call: got %d, %v", n, err)
	}
	for range (Chunks{}).All() {
		t.Error("outside of a call: a chunk")
	}
}

// TestUpload sends inputs that are readers unchanged.
func TestUpload(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, "event: a\ndata: {\"status\":\"completed\",\"output\":%q}\n\n",
			fmt.Sprint(r.Header.Get("Content-Type"), " ", r.ContentLength, " ", string(b), err))
	}))
	defer s.Close()
	t.Setenv("LMOSD_NODE", s.URL)
	for want, in := range map[string]any{
		"application/octet-stream -1 one<nil>": io.LimitReader(strings.NewReader("one two"), 3),
		"audio/wav -1 one<nil>":                Upload{"audio/wav", strings.NewReader("one")},
		"application/json 3 1.5<nil>":          1.5,
	} {
		if got, err := Call[string](t.Context(), "a", "b", in); err != nil || got != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
}
