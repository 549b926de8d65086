package server

import (
	"fmt"
	"strings"
	"testing"
)

func TestNear(t *testing.T) {
	t.Parallel()
	have := []string{"getWeather", "giveFeedback", "a"}
	for name, want := range map[string]string{
		"getweather":             "[getWeather]",
		"getWether":              "[getWeather]",
		"weather":                "[getWeather]",
		"Feedback":               "[giveFeedback]",
		"zzz":                    "[]",
		"":                       "[]",
		strings.Repeat("a", 1e6): "[]",
	} {
		if got := fmt.Sprint(similar(name, have)); got != want {
			t.Errorf("%.20q: got %s, want %s", name, got, want)
		}
	}
}
