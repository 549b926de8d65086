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

// A word is opened by who made it, for what it was made for.
func TestWords(t *testing.T) {
	t.Parallel()
	s := New("did:key:zA")
	word := s.Seal(ours, time.Minute, "run 7")
	var got string
	if err := s.Open(ours, word, &got); err != nil || got != "run 7" {
		t.Fatalf("got %q, %v", got, err)
	}
	changed := func(at int) string {
		raw, _ := base64.RawURLEncoding.DecodeString(word)
		raw[(at+len(raw))%len(raw)] ^= 1
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	for name, c := range map[string]struct {
		by   *Sealer
		for_ For
		word string
		want error
	}{
		"another caller":           {s, For{"call", "eve", ours.Request}, word, ErrForged},
		"nobody in particular":     {s, For{"call", "", ours.Request}, word, ErrForged},
		"another purpose":          {s, For{"task", "ada", ours.Request}, word, ErrForged},
		"parts that move":          {s, For{"cal", "lada", ours.Request}, word, ErrForged},
		"another request":          {s, For{"call", "ada", [32]byte{2}}, word, ErrForged},
		"no request":               {s, For{"call", "ada", [32]byte{}}, word, ErrForged},
		"changed at its end":       {s, ours, changed(-1), ErrForged},
		"changed in the middle":    {s, ours, changed(30), ErrForged},
		"shorter":                  {s, ours, word[:len(word)-2], ErrForged},
		"with a line end":          {s, ours, word + "\n", ErrForged},
		"longer":                   {s, ours, word + "AA", ErrForged},
		"nothing":                  {s, ours, "", ErrForged},
		"no base64":                {s, ours, "%%%%", ErrForged},
		"spare bits":               {s, ours, "AB", ErrForged},
		"a name without its end":   {s, ours, "_w", ErrForged},
		"very long":                {s, ours, strings.Repeat("A", maxWord+4), ErrForged},
		"of another process":       {New("did:key:zA"), ours, word, ErrForged},
		"of nobody who has a name": {s, ours, New("").Seal(ours, 0, 1), &ElsewhereError{}},
		"of another node":          {New("did:key:zB"), ours, word, &ElsewhereError{}},
		"whose node was changed":   {s, ours, changed(5), &ElsewhereError{}},
	} {
		got = "nothing"
		err := c.by.Open(c.for_, c.word, &got)
		elsewhere := new(ElsewhereError)
		if _, wants := c.want.(*ElsewhereError); wants != errors.As(err, &elsewhere) || !wants && !errors.Is(err, c.want) || got != "nothing" {
			t.Errorf("%s: got %v and %q", name, err, got)
		}
	}
	if err := s.Open(ours, s.Seal(ours, 0, 7), &got); !errors.Is(err, ErrForged) {
		t.Errorf("a number as a text: %v", err)
	}
}

// No word says what it stands for, and no two are alike.
func TestTokensAreOpaque(t *testing.T) {
	t.Parallel()
	s := New("")
	a, b := s.Seal(ours, 0, "secret"), s.Seal(ours, 0, "secret")
	raw, _ := base64.RawURLEncoding.DecodeString(a)
	if a == b || strings.Contains(string(raw), "secret") || strings.Contains(string(raw), "ada") {
		t.Errorf("got %q and %q", raw, b)
	}
}

func TestWordsEnd(t *testing.T) {
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

// Nothing that somebody makes up is opened.
func FuzzOpen(f *testing.F) {
	s := New("n")
	good := s.Seal(ours, 0, "x")
	f.Add(good, "call", "ada")
	f.Add("AW4", "", "")
	f.Add(good[:len(good)-1], "cal", "lada")
	f.Fuzz(func(t *testing.T, word, purpose, caller string) {
		var v string
		err := s.Open(For{purpose, caller, ours.Request}, word, &v)
		if err == nil && (word != good || purpose != "call" || caller != "ada") {
			t.Errorf("%q was opened for %q of %q", word, purpose, caller)
		}
		if err != nil && v != "" {
			t.Errorf("%q gives %q, and %v", word, v, err)
		}
	})
}
