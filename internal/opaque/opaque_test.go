package opaque

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var ours = For{Purpose: "call", Caller: "ada", Request: [32]byte{1}}

// A token opens only with its Sealer, purpose, caller and request.
func TestOpen(t *testing.T) {
	t.Parallel()
	s := New("did:key:zA")
	token := s.Seal(ours, time.Minute, "run 7")
	var got string
	if err := s.Open(ours, token, &got); err != nil || got != "run 7" {
		t.Fatalf("got %q, %v", got, err)
	}
	changed := func(at int) string {
		raw, _ := base64.RawURLEncoding.DecodeString(token)
		raw[(at+len(raw))%len(raw)] ^= 1
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	for name, c := range map[string]struct {
		by    *Sealer
		for_  For
		token string
		want  error
	}{
		"another caller":           {s, For{"call", "eve", ours.Request}, token, ErrForged},
		"no caller":                {s, For{"call", "", ours.Request}, token, ErrForged},
		"another purpose":          {s, For{"task", "ada", ours.Request}, token, ErrForged},
		"shifted boundaries":       {s, For{"cal", "lada", ours.Request}, token, ErrForged},
		"another request":          {s, For{"call", "ada", [32]byte{2}}, token, ErrForged},
		"no request":               {s, For{"call", "ada", [32]byte{}}, token, ErrForged},
		"changed at the end":       {s, ours, changed(-1), ErrForged},
		"changed in the middle":    {s, ours, changed(30), ErrForged},
		"shorter":                  {s, ours, token[:len(token)-2], ErrForged},
		"with a line end":          {s, ours, token + "\n", ErrForged},
		"longer":                   {s, ours, token + "AA", ErrForged},
		"nothing":                  {s, ours, "", ErrForged},
		"not base64":               {s, ours, "%%%%", ErrForged},
		"spare bits":               {s, ours, "AB", ErrForged},
		"a name without its end":   {s, ours, "_w", ErrForged},
		"over the limit":           {s, ours, strings.Repeat("A", maxToken+4), ErrForged},
		"of another process":       {New("did:key:zA"), ours, token, ErrForged},
		"of a node without a name": {s, ours, New("").Seal(ours, 0, 1), &ElsewhereError{}},
		"of another node":          {New("did:key:zB"), ours, token, &ElsewhereError{}},
		"with a changed node name": {s, ours, changed(5), &ElsewhereError{}},
	} {
		got = "nothing"
		err := c.by.Open(c.for_, c.token, &got)
		elsewhere := new(ElsewhereError)
		if _, wants := c.want.(*ElsewhereError); wants != errors.As(err, &elsewhere) || !wants && !errors.Is(err, c.want) || got != "nothing" {
			t.Errorf("%s: got %v and %q", name, err, got)
		}
	}
	if err := s.Open(ours, s.Seal(ours, 0, 7), &got); !errors.Is(err, ErrForged) {
		t.Errorf("a number opened as a string: %v", err)
	}
}

// A token contains no plain text, and two tokens of one value differ.
func TestTokensAreOpaque(t *testing.T) {
	t.Parallel()
	s := New("")
	a, b := s.Seal(ours, 0, "secret"), s.Seal(ours, 0, "secret")
	raw, _ := base64.RawURLEncoding.DecodeString(a)
	if a == b || strings.Contains(string(raw), "secret") || strings.Contains(string(raw), "ada") {
		t.Errorf("got %q and %q", raw, b)
	}
}

func TestTokensExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New("")
		brief, lasting := s.Seal(ours, time.Minute, 1), s.Seal(ours, 0, 1)
		var n int
		time.Sleep(time.Minute - time.Millisecond)
		if err := s.Open(ours, brief, &n); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Millisecond)
		if err := s.Open(ours, brief, &n); !errors.Is(err, ErrExpired) {
			t.Errorf("got %v", err)
		}
		time.Sleep(1000 * time.Hour)
		if err := s.Open(ours, lasting, &n); err != nil {
			t.Error(err)
		}
	})
}

// FuzzOpen checks that only issued tokens open.
func FuzzOpen(f *testing.F) {
	s := New("n")
	good := s.Seal(ours, 0, "x")
	f.Add(good, "call", "ada")
	f.Add("AW4", "", "")
	f.Add(good[:len(good)-1], "cal", "lada")
	f.Fuzz(func(t *testing.T, token, purpose, caller string) {
		var v string
		err := s.Open(For{purpose, caller, ours.Request}, token, &v)
		if err == nil && (token != good || purpose != "call" || caller != "ada") {
			t.Errorf("%q was opened for %q of %q", token, purpose, caller)
		}
		if err != nil && v != "" {
			t.Errorf("%q returns %q and %v", token, v, err)
		}
	})
}
