package frame

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/td"
)

// wireRequest, wireReply and wireError are the maps of the package comment, for a codec that knows nothing of this one.
type wireRequest struct {
	wireMessage
	Left     uint64  `cbor:"10,keyasint,omitempty"`
	Stream   bool    `cbor:"14,keyasint,omitempty"`
	After    string  `cbor:"17,keyasint,omitempty"`
	Key      string  `cbor:"18,keyasint,omitempty"`
	Detached bool    `cbor:"19,keyasint,omitempty"`
	Timed    bool    `cbor:"20,keyasint,omitempty"`
	As       *wireAs `cbor:"21,keyasint,omitempty"`
	Accept   string  `cbor:"23,keyasint,omitempty"`
}

type wireAs struct {
	Name     string  `cbor:"1,keyasint,omitempty"`
	Agent    did.DID `cbor:"2,keyasint,omitempty"`
	Roles    any     `cbor:"3,keyasint,omitempty"`
	Relation *uint64 `cbor:"4,keyasint,omitempty"`
}

func drawAs(t *rapid.T) As {
	if !rapid.Bool().Draw(t, "consumer") {
		return As{}
	}
	roles := rapid.SliceOfN(rapid.StringMatching(`[a-z0-9._-]{1,64}`), 0, 3).Draw(t, "roles")
	return As{IsConsumer: true, Name: rapid.StringMatching(`([a-z0-9._-]{1,64})?`).Draw(t, "as"), Roles: strings.Join(roles, " "),
		Agent:    did.DID(rapid.StringMatching(`(did:key:z6Mk[a-z]{1,40})?`).Draw(t, "agent")),
		Relation: did.Relation(rapid.Uint8Range(0, uint8(did.Own)).Draw(t, "relation"))}
}

func wireOfAs(as As) *wireAs {
	if !as.IsConsumer {
		return nil
	}
	w := &wireAs{Name: as.Name, Agent: as.Agent}
	if as.Roles != "" || as.Name == "" && as.Agent == "" && as.Relation == did.Own {
		w.Roles = strings.Fields(as.Roles)
	}
	if n := uint64(as.Relation) + 1; as.Relation < did.Own {
		w.Relation = &n
	}
	return w
}

type wireReply struct {
	wireMessage
	Host  uint64 `cbor:"20,keyasint,omitempty"`
	Agent uint64 `cbor:"21,keyasint,omitempty"`
	Began *int64 `cbor:"22,keyasint,omitempty"`
}

type wireMessage struct {
	Type        uint64 `cbor:"1,keyasint"`
	Thing       string `cbor:"2,keyasint,omitempty"`
	ID          string `cbor:"3,keyasint,omitempty"`
	Correlation string `cbor:"4,keyasint,omitempty"`
	Name        string `cbor:"5,keyasint,omitempty"`
	Status      uint64 `cbor:"6,keyasint,omitempty"`
	ContentType string `cbor:"7,keyasint,omitempty"`
	TraceParent string `cbor:"8,keyasint,omitempty"`
	TraceState  string `cbor:"9,keyasint,omitempty"`
	Time        *int64 `cbor:"11,keyasint,omitempty"`
	Hops        uint64 `cbor:"12,keyasint"`
	Size        uint64 `cbor:"13,keyasint,omitempty"`
	Data        []byte `cbor:"15,keyasint,omitempty"`
	ActionID    string `cbor:"16,keyasint,omitempty"`
}

// wireOf returns the members that requests and replies share.
func wireOf(m *interact.Message) wireMessage {
	return wireMessage{Type: uint64(m.Type), Thing: m.Thing, ID: m.ID, Correlation: m.Correlation, Name: m.Name,
		Status: uint64(m.Status), ContentType: m.ContentType, TraceParent: m.TraceParent, TraceState: m.TraceState,
		Time: nanoseconds(m.Time), Hops: uint64(m.Hops) + 1, Data: m.Data, ActionID: m.ActionID}
}

func nanoseconds(t time.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	n := t.UnixNano()
	return &n
}

type wireError struct {
	Code       uint64      `cbor:"1,keyasint"`
	Title      string      `cbor:"2,keyasint,omitempty"`
	Hint       string      `cbor:"3,keyasint,omitempty"`
	Detail     string      `cbor:"4,keyasint,omitempty"`
	Issues     [][2]string `cbor:"5,keyasint,omitempty"`
	Next       [][]string  `cbor:"7,keyasint,omitempty"`
	RetryAfter uint64      `cbor:"6,keyasint,omitempty"`
	Started    bool        `cbor:"8,keyasint,omitempty"`
}

// drawMessage draws what requests and replies share, of a message that can be sent.
func drawMessage(t *rapid.T) *interact.Message {
	m := &interact.Message{
		Type: interact.Type(rapid.Uint8Range(1, math.MaxUint8).Draw(t, "type")), Thing: drawText(t, "thing", maxThing),
		ID: drawText(t, "id", maxID), Correlation: drawText(t, "correlation", maxID), Name: drawText(t, "name", maxName),
		Status:      interact.Status(rapid.Uint8Range(0, 5).Draw(t, "status")),
		ContentType: drawText(t, "content type", maxMedia), TraceParent: drawText(t, "traceparent", maxTrace),
		TraceState: drawText(t, "tracestate", maxTrace), Hops: rapid.Uint8Range(0, 254).Draw(t, "hops"),
		Data: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "data"), Time: drawTime(t, "time"),
		ActionID: drawText(t, "action's id", maxID),
	}
	if len(m.Data) == 0 {
		m.Data = nil
	}
	return m
}

func drawText(t *rapid.T, name string, limit int) string {
	return rapid.StringN(0, 40, limit).Draw(t, name)
}

func drawTime(t *rapid.T, name string) time.Time {
	if rapid.Bool().Draw(t, "no "+name) {
		return time.Time{}
	}
	return time.Unix(0, rapid.Int64().Draw(t, name)).UTC()
}

// drawRequest draws a message with what only a request has.
func drawRequest(t *rapid.T) *interact.Message {
	m := drawMessage(t)
	m.After, m.Key = drawText(t, "after", maxID), drawText(t, "key", maxID)
	m.Detach, m.Accept = rapid.Bool().Draw(t, "detach"), drawText(t, "accept", maxMedia)
	if rapid.Bool().Draw(t, "timed") {
		m.Timing = &interact.Timing{}
	}
	return m
}

// drawReply draws a message with what only a reply has.
func drawReply(t *rapid.T) *interact.Message {
	m := drawMessage(t)
	m.Began = drawTime(t, "began")
	took := func(name string) time.Duration {
		return time.Duration(rapid.Uint64Range(0, maxTook).Draw(t, name)) * time.Microsecond
	}
	if rapid.Bool().Draw(t, "timed") {
		m.Timing = &interact.Timing{Host: took("host"), Agent: took("agent")}
	}
	return m
}

// TestRequestIsCBOR: what is written is what a general codec writes, and is read back.
func TestRequestIsCBOR(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := drawRequest(t)
		left := rapid.Uint64Range(0, maxLeft).Draw(t, "left")
		f := Extra{Stream: rapid.Bool().Draw(t, "stream"), As: drawAs(t)}
		as := wireOfAs(f.As)
		got, err := AppendRequest(nil, m, f, left)
		if err != nil {
			t.Fatal(err)
		}
		want, err := cbor.Marshal(wireRequest{wireMessage: wireOf(m), Left: left, Stream: f.Stream, After: m.After, Key: m.Key,
			Detached: m.Detach, Timed: m.Timing != nil, As: as, Accept: m.Accept})
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("got %x, want %x (%v)", got, want, err)
		}
		now := time.Unix(1000, 0)
		back, follow, err := ReadRequest(got, now)
		if err != nil {
			t.Fatal(err)
		}
		m.Hops++
		if left > 0 {
			m.Deadline = now.Add(time.Duration(left) * time.Millisecond)
		}
		if d := cmp.Diff(m, back); d != "" || follow != f {
			t.Fatalf("read back %+v (-want +got):\n%s", follow, d)
		}
	})
}

// TestReplyIsCBOR is the same for a reply that has nothing in common with its request.
func TestReplyIsCBOR(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r, req := drawReply(t), &interact.Message{}
		if rapid.Bool().Draw(t, "asked for times") {
			req.Timing = &interact.Timing{}
		}
		got, err := AppendReply(nil, r, req, Extra{})
		if err != nil {
			t.Fatal(err)
		}
		if req.Timing == nil || r.Timing != nil && *r.Timing == (interact.Timing{}) {
			r.Timing = nil // not sent without a request, or without a value
		}
		w := wireReply{wireMessage: wireOf(r), Began: nanoseconds(r.Began)}
		if r.Timing != nil {
			w.Host, w.Agent = uint64(r.Timing.Host.Microseconds()), uint64(r.Timing.Agent.Microseconds())
		}
		want, err := cbor.Marshal(w)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("got %x, want %x (%v)", got, want, err)
		}
		back, _, err := ReadReply(got, req)
		if err != nil {
			t.Fatal(err)
		}
		r.Hops++
		if d := cmp.Diff(r, back); d != "" {
			t.Fatalf("read back (-want +got):\n%s", d)
		}
	})
}

// TestReplySaysWhatDiffers: what a reply shares with its request is not sent, and is there again at the other end.
func TestReplySaysWhatDiffers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		req := drawRequest(t)
		r := req.Reply(interact.PropertyReading, "text/plain", []byte("42"))
		b, err := AppendReply(nil, r, req, Extra{})
		if err != nil || len(b) > 30 {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
		back, _, err := ReadReply(b, req)
		if err != nil {
			t.Fatal(err)
		}
		r.Hops++
		if d := cmp.Diff(r, back); d != "" {
			t.Fatalf("a plain reply (-want +got):\n%s", d)
		}
		other := drawReply(t) // the fields that it leaves empty are those of the request
		if b, err = AppendReply(nil, other, req, Extra{}); err != nil {
			t.Fatal(err)
		}
		if back, _, err = ReadReply(b, req); err != nil {
			t.Fatal(err)
		}
		if other.Thing != "" && back.Thing != other.Thing || other.Name != "" && back.Name != other.Name ||
			other.ActionID != "" && back.ActionID != other.ActionID || back.ID != other.ID || back.ContentType != other.ContentType || !bytes.Equal(back.Data, other.Data) {
			t.Fatalf("got %+v, want %+v", back, other)
		}
	})
}

// TestGoldenFrames holds the bytes of the package comment still.
func TestGoldenFrames(t *testing.T) {
	t.Parallel()
	m := &interact.Message{Type: interact.InvokeAction, Thing: "weather", Name: "getWeather", Data: []byte("{}")}
	detached := &interact.Message{Type: interact.InvokeAction, Data: []byte("{}"), ActionID: "a1", Key: "k", Detach: true,
		Timing: &interact.Timing{Path: "mesh", Resolve: 1, Total: 2, Host: 3, Agent: 4}, Accept: "application/cbor", Via: "mesh"}
	pending := detached.Reply(interact.ActionStatus, "", nil)
	pending.Status, pending.ActionID, pending.Began = interact.StatusPending, "b2", time.Unix(0, 7)
	pending.Timing = &interact.Timing{Path: "local", Resolve: time.Hour, Total: time.Hour, Host: 300 * time.Microsecond, Agent: 1}
	watch := &interact.Message{Type: interact.ObserveAllProperties, After: "e9"}
	for name, c := range map[string]struct {
		kind Kind
		id   uint64
		body func([]byte) ([]byte, error)
		want string
	}{
		"request": {Request, 1, func(b []byte) ([]byte, error) { return AppendRequest(b, m, Extra{}, 5000) },
			"24" + "01" + "01" + "a6" + "0109" + "026777656174686572" + "056a67657457656174686572" + "0a191388" + "0c01" + "0f427b7d"},
		"reply": {Last, 300, func(b []byte) ([]byte, error) { return AppendReply(b, completed(m, "{}"), m, Extra{}) },
			"0f" + "03" + "ac02" + "a4" + "011822" + "0603" + "0c01" + "0f427b7d"},
		"detached request": {Request, 1, func(b []byte) ([]byte, error) { return AppendRequest(b, detached, Extra{}, 0) },
			"28" + "01" + "01" + "a8" + "0109" + "0c01" + "0f427b7d" + "10626131" + "12616b" + "13f5" + "14f5" +
				"1770" + hex.EncodeToString([]byte("application/cbor"))},
		"pending reply": {Reply, 1, func(b []byte) ([]byte, error) { return AppendReply(b, pending, detached, Extra{}) },
			"16" + "02" + "01" + "a7" + "011822" + "0601" + "0c01" + "10626232" + "1419012c" + "1501" + "1607"},
		"observation": {Request, 2, func(b []byte) ([]byte, error) { return AppendRequest(b, watch, Extra{}, 0) },
			"0b" + "01" + "02" + "a3" + "0111" + "0c01" + "11626539"},
		"error": {Error, 1, func(b []byte) ([]byte, error) {
			return AppendError(b, interact.Errorf(interact.Loop, "h", "t")), nil
		}, "0d" + "05" + "01" + "a3" + "011905b8" + "026174" + "036168"},
		"cancel": {Cancel, 7, func(b []byte) ([]byte, error) { return b, nil }, "02" + "07" + "07"},
	} {
		got, err := Append(nil, c.kind, c.id, c.body)
		if err != nil || hex.EncodeToString(got) != c.want {
			t.Errorf("%s: got %x, want %s (%v)", name, got, c.want, err)
		}
	}
}

func TestBadMaps(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]string{
		"nothing":                   "",
		"no map":                    "01",
		"no type":                   "a10c01",
		"type 0":                    "a20100" + "0c01",
		"no hops":                   "a10109",
		"cut":                       "a20109" + "0c",
		"bytes after the end":       "a20109" + "0c01" + "00",
		"a member too few":          "a30109" + "0c01",
		"keys not in order":         "a20c01" + "0109",
		"a key twice":               "a301090109" + "0c01",
		"an unknown key":            "a30109" + "0c01" + "181801",
		"a number as action's id":   "a30109" + "0c01" + "1001",
		"an empty key":              "a30109" + "0c01" + "1260",
		"detached: false":           "a30109" + "0c01" + "13f4",
		"times that are a number":   "a30109" + "0c01" + "1401",
		"times of a reply":          "a30109" + "0c01" + "1501",
		"a beginning":               "a30109" + "0c01" + "1601",
		"a long action's id":        "a30109" + "0c01" + "10790101" + strings.Repeat("61", 257),
		"a long accept":             "a30109" + "0c01" + "17790101" + strings.Repeat("61", 257),
		"key 0":                     "a300010109" + "0c01",
		"a number not shortest":     "a2011809" + "0c01",
		"a length not shortest":     "a30109" + "02780161" + "0c01",
		"8 bytes not shortest":      "a301091b0000000000000001" + "0c01",
		"an indefinite map":         "bf01090c01ff",
		"an indefinite text":        "a30109027f6161ff" + "0c01",
		"a reserved head":           "a2011c" + "0c01",
		"a text as type":            "a2016161" + "0c01",
		"a text that is no UTF-8":   "a301090261ff" + "0c01",
		"an empty text":             "a3010902600c01",
		"a text longer than there":  "a3010902790400" + "0c01",
		"4 GiB of text":             "a30109027affffffff" + "0c01",
		"2^64-1 bytes of data":      "a301090c010f5bffffffffffffffff",
		"empty data":                "a301090c010f40",
		"data and its size":         "a401090c010d0a0f4161",
		"a false":                   "a301090c010ef4",
		"a status of no meaning":    "a3010906070c01",
		"a type over 255":           "a2011901000c01",
		"more time than a year":     "a30109" + "0a1b0000001000000000" + "0c01",
		"a map that is too large":   "b8640109",
		"an id longer than allowed": "a3010903790101" + strings.Repeat("61", 257) + "0c01",
	} {
		raw, err := hex.DecodeString(b)
		if err != nil {
			t.Fatal(name, err)
		}
		if m, _, err := ReadRequest(raw, time.Now()); !errors.Is(err, errCBOR) {
			t.Errorf("%s: got %+v, %v", name, m, err)
		}
	}
	req, timed := call("a", ""), call("a", "")
	timed.Timing = &interact.Timing{}
	for name, c := range map[string]struct {
		req *interact.Message
		b   string
	}{
		"a reply with a request stream":    {req, "a301090c010ef5"},
		"a reply with a deadline":          {req, "a301090a010c01"},
		"a reply with after":               {req, "a301090c01116161"},
		"a reply with a key":               {req, "a301090c01126161"},
		"a reply that is detached":         {req, "a301090c0113f5"},
		"a reply with accept":              {req, "a301090c01176161"},
		"times without a request":          {req, "a301090c011401"},
		"an agent's, neither":              {req, "a301090c011501"},
		"a reply that requests times":      {timed, "a301090c0114f5"},
		"times of 0":                       {timed, "a301090c011400"},
		"times of more than a year":        {timed, "a301090c01141b0001000000000000"},
		"a beginning that is no integer":   {req, "a301090c01166161"},
		"a beginning that is out of range": {req, "a301090c01161bffffffffffffffff"},
	} {
		raw, err := hex.DecodeString(c.b)
		if err != nil {
			t.Fatal(name, err)
		}
		if _, _, err := ReadReply(raw, c.req); !errors.Is(err, errCBOR) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for name, b := range map[string]string{
		"no code": "a0", "code 0": "a10100", "a code over 65535": "a1011a00010000", "no issues": "a2011905b80580",
		"an issue of one": "a2011905b805818161", "an issue of three": "a2011905b80581836161616161", "no steps": "a2011905b80701", "an empty step": "a2011905b8078180", "five steps": "a2011905b80785" + strings.Repeat("816166", 5),
		"a step of six texts": "a2011905b807818661616161616161616161" + "6161", "0 ms": "a2011905b80600", "two days": "a2011905b8061a0a4cb800",
		"started is a number": "a2011905b80801", "cut issue": "a2011905b8058182", "nothing": "", "33 issues": "a2011905b8059821" + strings.Repeat("826060", 33),
	} {
		raw, err := hex.DecodeString(b)
		if err != nil {
			t.Fatal(name, err)
		}
		if e, err := ReadError(raw); err == nil {
			t.Errorf("%s: got %+v", name, e)
		}
	}
	// Members and steps of a later version are ignored.
	for _, b := range []string{"a2011905b80901", "a2011905b80781816161", "a2011905b80782816161816466696e64"} {
		raw, err := hex.DecodeString(b)
		if err != nil {
			t.Fatal(err)
		}
		if e, err := ReadError(raw); err != nil || e.Code != 0x5b8 || slices.ContainsFunc(e.Next, func(s interact.Step) bool { return s.Kind != interact.StepFind }) {
			t.Errorf("%s: got %+v, %v", b, e, err)
		}
	}
}

func TestErrorIsCBOR(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(0, 30, maxIssue)
		e := &interact.Error{Code: interact.Code(rapid.Uint16Range(1, math.MaxUint16).Draw(t, "code")), Title: text.Draw(t, "title"),
			Hint: text.Draw(t, "hint"), RetryAfter: time.Duration(rapid.Int64Range(-1, int64(maxRetryAfter)).Draw(t, "retry after")), Started: rapid.Bool().Draw(t, "started")}
		ms := (max(e.RetryAfter, 0) + time.Millisecond - 1).Truncate(time.Millisecond)
		w := wireError{Code: uint64(e.Code), Title: e.Title, Hint: e.Hint, RetryAfter: uint64(ms.Milliseconds()), Started: e.Started, Detail: text.Draw(t, "detail")}
		if w.Detail != "" {
			e.Err, e.Remote = errors.New(w.Detail), true
		}
		for range rapid.IntRange(0, maxIssues).Draw(t, "issues") {
			i := td.Issue{Pointer: text.Draw(t, "pointer"), Reason: text.Draw(t, "reason")}
			e.Issues, w.Issues = append(e.Issues, i), append(w.Issues, [2]string{i.Pointer, i.Reason})
		}
		for range rapid.IntRange(0, interact.MaxSteps).Draw(t, "steps") {
			e, w.Next = e.Then(interact.StepShow, "urn:a b"), append(w.Next, []string{"show", "urn:a b"})
		}
		got := AppendError(nil, e)
		want, err := cbor.Marshal(w)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("got %x, want %x (%v)", got, want, err)
		}
		back, err := ReadError(got)
		if err != nil {
			t.Fatal(err)
		}
		if !back.Remote || back.Code != foreign(e.Code) || back.Title != e.Title || back.Hint != e.Hint || !slices.Equal(back.Issues, e.Issues) || !reflect.DeepEqual(back.Next, e.Next) || back.RetryAfter != ms || back.Started != e.Started {
			t.Fatalf("got %+v, want %+v", back, e)
		}
	})
}

func TestForeignCodes(t *testing.T) {
	t.Parallel()
	for sent, want := range map[interact.Code]interact.Code{
		interact.NotFound: interact.NotFound, interact.AgentFailed: interact.AgentFailed, interact.Overloaded: interact.Overloaded,
		interact.BadTD: interact.BadTD, interact.ShuttingDown: interact.ShuttingDown, interact.DiskFull: interact.DiskFull,
		// It cannot speak of this node's token, key, configuration or process.
		interact.TokenRejected: interact.AgentFailed, interact.NotRunning: interact.AgentFailed, interact.Usage: interact.AgentFailed,
		interact.DataDirLocked: interact.AgentFailed, interact.KeyPermissions: interact.AgentFailed, 1999: interact.AgentFailed, 65535: interact.AgentFailed,
	} {
		got, err := ReadError(AppendError(nil, &interact.Error{Code: sent}))
		if err != nil || got.Code != want {
			t.Errorf("%v became %v (%v), want %v", sent, got, err, want)
		}
	}
}

func TestCausesAreNotSent(t *testing.T) {
	t.Parallel()
	secret := &interact.Error{Code: interact.Internal, Title: "it failed", Err: errors.New("open /var/lib/lmosd/identity.pem")}
	if b := AppendError(nil, secret); bytes.Contains(b, []byte("identity.pem")) {
		t.Errorf("the cause of a local error is sent to peers: %q", b)
	}
}

func TestLongErrorsAreCut(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 10_000)
	e := &interact.Error{Remote: true, Title: long, Hint: "\xff" + long, Err: errors.New(long)}
	for range 100 {
		e.Issues = append(e.Issues, td.Issue{Pointer: long, Reason: long})
		e = e.Then(interact.StepShow, strings.Repeat("é", 128), strings.Repeat("é", 128), strings.Repeat("é", 128), strings.Repeat("é", 128)).Then(interact.StepShow, long)
	}
	b := AppendError(nil, e)
	if len(b) > MaxControl {
		t.Errorf("an error of %d bytes", len(b))
	}
	back, err := ReadError(b)
	if err != nil {
		t.Fatal(err)
	}
	if back.Code != interact.Internal || len(back.Title) != maxTitle || back.Hint != "" || len(back.Issues) != maxIssues || len(back.Next) != interact.MaxSteps {
		t.Errorf("got code %v, a title of %d bytes, hint %q, %d issues", back.Code, len(back.Title), back.Hint, len(back.Issues))
	}
	if got := cut("aé", 2); got != "a" {
		t.Errorf("a rune was cut in half: %q", got)
	}
}

func TestTimesThatCannotBeSent(t *testing.T) {
	t.Parallel()
	m := call("a", "")
	m.Time = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	m.Began = time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC)
	b, err := AppendReply(nil, m, m, Extra{})
	if err != nil {
		t.Fatal(err)
	}
	if back, _, err := ReadReply(b, m); err != nil || !back.Time.IsZero() || !back.Began.IsZero() {
		t.Errorf("got %v and %v, %v, want no time", back.Time, back.Began, err)
	}
}

// TestTook: each measured time is sent, however short.
func TestTook(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]uint64{-1: 0, 0: 0, 1: 1, time.Microsecond: 1, 1999: 1, time.Second: 1_000_000,
		math.MaxInt64: maxTook} {
		if got := took(d); got != want {
			t.Errorf("%v became %d µs, want %d", d, got, want)
		}
	}
}

func TestTimeLeft(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		deadline time.Time
		want     uint64
	}{
		"none":         {time.Time{}, 0},
		"a second":     {now.Add(time.Second), 1000},
		"microseconds": {now.Add(time.Microsecond), 1},
		"past":         {now.Add(-time.Hour), 1},
		"a century":    {now.AddDate(100, 0, 0), maxLeft},
	} {
		if got := TimeLeft(c.deadline, now); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}

func FuzzMessage(f *testing.F) {
	for _, m := range []*interact.Message{{Type: 1}, call("getWeather", `{"question":"Rain in Bonn?"}`),
		{Type: interact.ReadProperty, Thing: "t", Name: "p", TraceParent: "tp", TraceState: "ts", Time: time.Unix(-1, 5), Correlation: "c"},
		{Type: interact.InvokeAction, Data: []byte("{}"), ActionID: "a", After: "b", Key: "k", Detach: true, Timing: &interact.Timing{},
			Accept: "application/cbor"}} {
		b, err := AppendRequest(nil, m, Extra{Stream: true}, 100)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		if b, err = AppendRequest(nil, m, Extra{As: As{IsConsumer: true, Name: "crm", Roles: "a b"}}, 100); err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, as := range []map[int]any{{2: "did:key:z", 3: []string{"a"}, 4: 1}, {1: "crm", 9: map[string]any{"x": []any{true, nil, -1, []byte("b")}}}} {
		b, err := cbor.Marshal(map[int]any{1: 1, 2: "t", 12: 1, 21: as})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	asked := call("a", "")
	asked.Timing, asked.ActionID = &interact.Timing{}, "a1"
	told := completed(asked, "x")
	told.Timing, told.Began, told.ActionID = &interact.Timing{Host: time.Second, Agent: time.Millisecond}, time.Unix(5, 6), "a2"
	if b, err := AppendReply(nil, told, asked, Extra{}); err == nil {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fuzzReply(t, b, asked)
		fuzzReply(t, b, call("a", ""))
		now := time.Unix(1000, 0)
		m, follow, err := ReadRequest(b, now)
		if err != nil {
			return
		}
		left := TimeLeft(m.Deadline, now)
		m.Hops--
		again, err := AppendRequest(nil, m, follow, left)
		if err == nil && len(again) < len(b) { // what is said of a consumer, and not known yet, is passed over
			m.Hops++
			back, same, err := ReadRequest(again, now)
			if d := cmp.Diff(m, back); d != "" || same != follow || err != nil || b[0] < again[0] {
				t.Errorf("%x was read as %+v, and %x as %+v (%v)", b, m, again, back, err)
			}
			return
		}
		if err != nil || !bytes.Equal(again, b) {
			t.Errorf("%x was read as %+v, which is written as %x (%v)", b, m, again, err)
		}
	})
}

// fuzzReply: what a reply was read as is written as something that reads the same.
func fuzzReply(t *testing.T, b []byte, req *interact.Message) {
	t.Helper()
	r, f, err := ReadReply(b, req)
	if err != nil || r.Hops == 0 {
		return // written, it would have passed this node
	}
	r.Hops--
	again, err := AppendReply(nil, r, req, f)
	if err != nil || len(again) > len(b) {
		t.Fatalf("%x was read as %+v, which is written as %x (%v)", b, r, again, err)
	}
	back, follow, err := ReadReply(again, req)
	r.Hops++
	if d := cmp.Diff(r, back); d != "" || err != nil || follow != f {
		t.Errorf("%x was read as %+v, and %x as %+v (%v)", b, r, again, back, err)
	}
}

func FuzzError(f *testing.F) {
	f.Add(AppendError(nil, interact.Errorf(interact.NotFound, "see it", "no agent matches")))
	f.Add(AppendError(nil, &interact.Error{Code: 1400, Issues: []td.Issue{{Pointer: "/a", Reason: "b"}}, Err: errors.New("c")}))
	f.Add(AppendError(nil, interact.Errorf(interact.NotFound, "see what there is", "no agent matches").Then(interact.StepFind).Then(interact.StepShow, "a")))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := ReadError(b)
		if err != nil {
			return
		}
		again := AppendError(nil, e) // without members and steps of unknown kinds
		if e.Code != interact.AgentFailed && len(again) >= len(b) && !bytes.Equal(again, b) {
			t.Errorf("%x was read as %+v, which is written as %x", b, e, again)
		}
		// A code that the far end may not use was replaced by AgentFailed: then the second writing is the fixed point.
		if e, err = ReadError(again); err != nil || !bytes.Equal(AppendError(nil, e), again) {
			t.Errorf("%x is written as %x, which reads as %+v (%v)", b, again, e, err)
		}
	})
}

// TestCodecAllocates holds what a small message costs: the message and its texts when it is read, nothing when written.
func TestCodecAllocates(t *testing.T) {
	m := call("getWeather", strings.Repeat("x", 256))
	m.TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	buf := make([]byte, 0, 1024)
	var b []byte
	var err error
	if n := testing.AllocsPerRun(100, func() { b, err = AppendRequest(buf, m, Extra{}, 100) }); n != 0 || err != nil {
		t.Errorf("a request is written with %v allocations (%v), want 0", n, err)
	}
	now := time.Now()
	if n := testing.AllocsPerRun(100, func() { _, _, err = ReadRequest(b, now) }); n > 2 || err != nil {
		t.Errorf("a request is read with %v allocations (%v), want at most 2", n, err)
	}
	whole := *m
	whole.Key, whole.Accept = "key", "application/cbor"
	late, err := AppendRequest(nil, &whole, Extra{}, 100)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _, err = ReadRequest(late, now) }); n > 3 || err != nil {
		t.Errorf("a request with members behind its data is read with %v allocations (%v), want at most 3", n, err)
	}
	r := completed(m, strings.Repeat("x", 256))
	if n := testing.AllocsPerRun(100, func() { b, err = AppendReply(buf, r, m, Extra{}) }); n != 0 || err != nil {
		t.Errorf("a reply is written with %v allocations (%v), want 0", n, err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _, err = ReadReply(b, m) }); n > 1 || err != nil {
		t.Errorf("a reply is read with %v allocations (%v), want at most 1", n, err)
	}
}

// TestStatements: what a node says of its consumer is a name or nothing; what else it will say one day is passed over, and what is no
// such statement is no request.
func TestStatements(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 64)
	var deep any = 1
	for range 10 {
		deep = []any{deep}
	}
	for name, c := range map[string]struct {
		as   any
		want string        // name, roles and relation
		code interact.Code // 0: none; Internal: the peer broke the protocol
	}{
		"a name":                 {map[int]any{1: "crm-2._x"}, "crm-2._x,,own", 0},
		"the longest":            {map[int]any{1: long}, long + ",,own", 0},
		"and what comes later":   {map[int]any{1: "crm", 2: "did:key:zX", 3: []string{"a", "b"}, 4: 3, 7: map[string]any{"a": nil}}, "crm,a b,own", 0},
		"what comes later alone": {map[int]any{2: "did:key:zX"}, ",,own", 0},
		"untrusted":              {map[int]any{4: 1}, ",,untrusted", 0},
		"a partner":              {map[int]any{1: "crm", 4: 2}, "crm,,partner", 0},
		"more than a node":       {map[int]any{1: "crm", 4: 4}, "crm,,own", 0},
		"all roles":              {map[int]any{3: []string{"*"}}, ",*,own", 0},
		"no roles":               {map[int]any{3: []string{}}, ",,own", 0},
		"impossible roles":       {map[int]any{3: []string{"A b", "c"}}, ",c,own", 0},
		"roles that are a text":  {map[int]any{3: "a"}, "", interact.Internal},
		"many roles":             {map[int]any{3: slices.Repeat([]string{"a"}, maxRoles+1)}, "", interact.Internal},
		"too long":               {map[int]any{1: long + "x"}, "", interact.Invalid},
		"another alphabet":       {map[int]any{1: "CRM"}, "", interact.Invalid},
		"a user of a machine":    {map[int]any{1: "uid:1000"}, "", interact.Invalid},
		"a second consumer":      {map[int]any{1: "crm#ops"}, "", interact.Invalid},
		"an empty name":          {map[int]any{1: ""}, "", interact.Internal},
		"nothing":                {map[int]any{}, "", interact.Internal},
		"no text":                {map[int]any{1: 7}, "", interact.Internal},
		"no map":                 {"crm", "", interact.Internal},
		"a key that is a word":   {map[string]any{"name": "crm"}, "", interact.Internal},
		"nested too deep":        {map[int]any{9: deep}, "", interact.Internal},
		"a float":                {map[int]any{9: 1.5}, "", interact.Internal},
	} {
		b, err := cbor.Marshal(map[int]any{1: 1, 2: "t", 12: 1, 21: c.as})
		if err != nil {
			t.Fatal(err)
		}
		_, f, err := ReadRequest(b, time.Now())
		switch e := interact.AsError(err); {
		case c.code == 0 && (err != nil || !f.As.IsConsumer || strings.Join([]string{f.As.Name, f.As.Roles, f.As.Relation.String()}, ",") != c.want):
			t.Errorf("%s: read as %+v, %v", name, f.As, err)
		case c.code == interact.Internal && !errors.Is(err, ErrProtocol), c.code == interact.Invalid && (e == nil || e.Code != c.code || e.Hint == "" && e.Next == nil):
			t.Errorf("%s: %v", name, err)
		}
	}
}
