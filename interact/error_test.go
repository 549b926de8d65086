package interact

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/lmosd/lmosd/td"
)

// declared returns the codes that error.go declares, by name, as in the source.
func declared(t *testing.T) map[string]Code {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "error.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]Code{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == "Code" {
			v, err := strconv.Atoi(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			codes[spec.Names[0].Name] = Code(v)
		}
		return true
	})
	return codes
}

func TestCatalogIsComplete(t *testing.T) {
	t.Parallel()
	codes := declared(t)
	if len(codes) < 30 || len(codes) != len(Codes()) {
		t.Errorf("%d codes are declared, %d are in the catalog", len(codes), len(Codes()))
	}
	kebab := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	seen := map[string]Code{}
	for name, c := range codes {
		if _, ok := catalog[c]; !ok {
			t.Errorf("%s %s is not in the catalog", name, c)
			continue
		}
		if !kebab.MatchString(c.Slug()) {
			t.Errorf("%s has the slug %q", c, c.Slug())
		}
		if other, twice := seen[c.Slug()]; twice {
			t.Errorf("%s and %s share the slug %q", c, other, c.Slug())
		}
		seen[c.Slug()] = c
		if c.Title() == "" || c.Title()[0] < 'A' || c.Title()[0] > 'Z' {
			t.Errorf("%s has the title %q", c, c.Title())
		}
	}
}

// TestCodesAreStable: nodes exchange these numbers and names. Lines may be added and not changed.
func TestCodesAreStable(t *testing.T) {
	t.Parallel()
	for slug, c := range map[string]Code{
		"invalid-message": 1400, "unauthenticated": 1401, "forbidden-by-policy": 1403, "agent-not-found": 1404,
		"affordance-not-found": 1405, "operation-not-allowed": 1406, "ambiguous-name": 1407, "peer-not-found": 1409,
		"task-not-found": 1410, "agent-withdrawn": 1411, "too-large": 1413, "unsupported-content-type": 1415,
		"rate-limited": 1429, "signature-invalid": 1460, "description-expired": 1461, "sender-mismatch": 1462,
		"description-rolled-back": 1463, "loop": 1464, "cancelled": 1499, "internal": 1500, "agent-failed": 1502,
		"agent-unreachable": 1503, "timeout": 1504, "overloaded": 1529, "relay-limited": 1531, "usage": 2000, "config-unknown-field": 2001,
		"config-invalid-value": 2002, "config-unreadable": 2003, "config-inline-secret": 2005,
		"wildcard-bind-without-auth": 2006, "invitation-invalid": 2008, "td-not-json": 2010, "td-schema": 2011, "node-not-running": 3001,
		"node-unreachable": 3002, "token-rejected": 3003, "port-busy": 3010, "data-dir-locked": 3011, "key-permissions": 3012,
		"store-corrupt": 3020, "disk-full": 3021, "store-too-new": 3022, "shutting-down": 3030, "not-ready": 3031,
	} {
		if c.Slug() != slug || !slices.Contains(Codes(), c) {
			t.Errorf("%d is %q, want %q", c, c.Slug(), slug)
		}
	}
	for typ, n := range map[Type]uint8{ReadProperty: 1, WriteProperty: 2, ReadAllProperties: 3, ReadMultipleProperties: 4,
		WriteAllProperties: 5, WriteMultipleProperties: 6, ObserveProperty: 7, UnobserveProperty: 8, InvokeAction: 9,
		QueryAction: 10, CancelAction: 11, QueryAllActions: 12, SubscribeEvent: 13, UnsubscribeEvent: 14,
		SubscribeAllEvents: 15, UnsubscribeAllEvents: 16, PropertyReading: 32, PropertyReadings: 33, ActionStatus: 34,
		ActionStatuses: 35, Event: 36, Acknowledgement: 37} {
		if uint8(typ) != n {
			t.Errorf("a type is %d, want %d", typ, n)
		}
	}
	for s, n := range map[Status]uint8{StatusNone: 0, StatusPending: 1, StatusRunning: 2, StatusCompleted: 3, StatusFailed: 4,
		StatusCancelled: 5} {
		if uint8(s) != n {
			t.Errorf("a status is %d, want %d", s, n)
		}
	}
}

func TestCodeTexts(t *testing.T) {
	t.Parallel()
	if got := NotFound.String(); got != "LMOS-1404" {
		t.Errorf("got %s", got)
	}
	if got := Code(7).String(); got != "LMOS-0007" {
		t.Errorf("got %s", got)
	}
	if c := Code(65535); c.Slug() != "internal" || c.Title() != "Internal error" || c.Retryable() {
		t.Errorf("a code of a newer node is %q, %q, retryable=%t", c.Slug(), c.Title(), c.Retryable())
	}
}

func TestRetryable(t *testing.T) {
	t.Parallel()
	var got []Code
	for _, c := range Codes() {
		if c.Retryable() {
			got = append(got, c)
		}
	}
	slices.Sort(got)
	want := []Code{RateLimited, StatusUnknown, Unreachable, Timeout, Overloaded, RelayLimited, NotRunning, NodeLost, DiskFull, ShuttingDown, NotReady}
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("retryable are %v, want %v", got, want)
	}
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	cause := errors.New("connection refused")
	for want, e := range map[string]*Error{
		"Agent unreachable":                          {Code: Unreachable},
		"no path to weather":                         {Code: Unreachable, Title: "no path to weather"},
		"Agent unreachable: connection refused":      {Code: Unreachable, Err: cause},
		"no path to weather: connection refused":     {Code: Unreachable, Title: "no path to weather", Err: cause},
		`no agent matches "weathr"`:                  Errorf(NotFound, "search for it", "no agent matches %q", "weathr"),
		"100% of it failed (no verb is left behind)": Errorf(Internal, "", "%s", "100% of it failed (no verb is left behind)"),
	} {
		if got := e.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if e := (&Error{Err: cause}); !errors.Is(e, cause) {
		t.Error("the cause is hidden")
	}
	if e := Errorf(NotFound, "search for it", "x"); e.Code != NotFound || e.Hint != "search for it" || e.Remote {
		t.Errorf("got %+v", e)
	}
}

func TestAsError(t *testing.T) {
	t.Parallel()
	own := Errorf(Loop, "h", "t")
	invalid := &td.ValidationError{Issues: []td.Issue{{Pointer: "/title", Reason: "is missing"}}}
	for name, c := range map[string]struct {
		err    error
		want   Code
		issues int
	}{
		"an Error":                 {own, Loop, 0},
		"a wrapped Error":          {fmt.Errorf("call weather: %w", own), Loop, 0},
		"a context that was left":  {fmt.Errorf("x: %w", context.Canceled), Cancelled, 0},
		"a deadline":               {context.DeadlineExceeded, Timeout, 0},
		"a TD with issues":         {fmt.Errorf("publish: %w", invalid), BadTD, 1},
		"a TD that is not JSON":    {&td.ValidationError{NotJSON: true, Issues: invalid.Issues}, NotJSON, 1},
		"a TD that is too large":   {&td.ValidationError{TooLarge: true}, TooLarge, 0},
		"anything else":            {errors.New("disk on fire"), Internal, 0},
		"an Error inside of joins": {errors.Join(errors.New("a"), own), Loop, 0},
	} {
		e := AsError(c.err)
		if e.Code != c.want || len(e.Issues) != c.issues {
			t.Errorf("%s: got %v with %d issues, want %v with %d", name, e.Code, len(e.Issues), c.want, c.issues)
		}
		if c.want != Loop && !errors.Is(e, c.err) {
			t.Errorf("%s: the cause is lost", name)
		}
	}
	if AsError(nil) != nil {
		t.Error("no error became one")
	}
	if AsError(own) != own {
		t.Error("an Error was wrapped again")
	}
	for _, err := range []error{context.DeadlineExceeded, invalid} {
		if AsError(err).Hint == "" && AsError(err).Next == nil {
			t.Errorf("%v has no hint", err)
		}
	}
}

func TestQuote(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"urn:x:weather@z6Mk": "urn:x:weather@z6Mk",
		"urn:x;reboot;#":     "'urn:x;reboot;#'",
		"it's $(here)":       `'it'\''s $(here)'`,
		"":                   "''",
		"wetter-köln":        "'wetter-köln'",
	} {
		if got := Quote(text); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}
