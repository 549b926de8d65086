package interact

import "testing"

func TestReadable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain": "plain", " two\r\n\tlines ": "two lines", "\x1b[2Jclear": "[2Jclear", "a\u202eb": "a b", "bad\xffbyte": "bad byte", "": "", "süß": "süß",
	} {
		if got := Readable(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestClip(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		n    int
		want string
	}{{"short", 5, "short"}, {"longer", 4, "long…"}, {"süß", 2, "s…"}, {"süß", 3, "sü…"}, {"x", 0, "…"}} {
		if got := Clip(c.text, c.n); got != c.want {
			t.Errorf("%q to %d: got %q, want %q", c.text, c.n, got, c.want)
		}
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0 agents are", 1: "1 agent is", 2: "2 agents are"} {
		if got := Count(n, "agent is", "agents are"); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}
