package invitation

import (
	"crypto/sha256"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The words are part of what people compare, so that a change of the list would make two programs differ.
func TestWordList(t *testing.T) {
	t.Parallel()
	all := wordList()
	if len(all) != wordCount || !slices.IsSorted(all) || len(slices.Compact(slices.Clone(all))) != wordCount {
		t.Fatalf("%d words, want %d that differ, in order", len(all), wordCount)
	}
	for _, w := range all {
		if !regexp.MustCompile(`^[a-z]{3,8}$`).MatchString(w) {
			t.Errorf("the word %q", w)
		}
	}
	const want = "8d5ae59b15f80ad8"
	if got := fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(all, " "))))[:16]; got != want {
		t.Errorf("the list changed: %s, want %s", got, want)
	}
}

func TestCheckWords(t *testing.T) {
	t.Parallel()
	const a, b, c = "QmPEQVM1JPTyrvEgBcDXwjK4TeyLGSX1PxjgyeAisdWM1p", "QmcbM5bppyT4yyaL35TQQJ2XdSrSNAhH5t6f4ZcuyR4VSv", "QmSomeOther"
	words := CheckWords(a, b)
	if words != CheckWords(b, a) {
		t.Error("the order of the identifiers counts")
	}
	if words == CheckWords(a, c) || words == CheckWords(c, b) || CheckWords(a, a) == CheckWords(b, b) {
		t.Error("other identifiers have the same words")
	}
	const want = "unicorn kick waist weather blouse flash"
	if got := strings.Join(words[:], " "); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	// The words are the first 66 bits, by another way.
	sum := sha256.Sum256([]byte("lmos-check-v1:" + a + "|" + b))
	for range checkRounds {
		sum = sha256.Sum256(sum[:])
	}
	bits := fmt.Sprintf("%0256b", new(big.Int).SetBytes(sum[:]))
	for i, w := range words {
		n, _ := new(big.Int).SetString(bits[i*wordBits:(i+1)*wordBits], 2)
		if wordList()[n.Int64()] != w {
			t.Errorf("word %d is %q", i+1, w)
		}
	}
}

func BenchmarkCheckWords(b *testing.B) {
	for b.Loop() {
		CheckWords("QmA", "QmB")
	}
}
