package agent

import (
	"fmt"
	"hash/fnv"
	"math"
	"strings"
	"unicode"
)

// skies are the kinds of weather there are, with the temperature in °C.
var skies = []struct {
	words  string
	degree int
	until  int
}{
	{"Light rain", 12, 16},
	{"Sunny", 24, 20},
	{"Cloudy", 17, 18},
	{"Fog", 7, 10},
	{"Snow", -2, 22},
	{"Thunderstorms", 21, 19},
	{"Windy and clear", 15, 21},
}

// forecast returns the weather of the city in a question: always the same per city, and light rain in Bonn.
func forecast(question, units string, voice bool) string {
	s := skies[0]
	if c := strings.ToLower(city(question)); c != "bonn" {
		h := fnv.New32a()
		h.Write([]byte(c))
		s = skies[h.Sum32()%uint32(len(skies))]
	}
	degree, sign, word := s.degree, "C", "Celsius"
	if units == "fahrenheit" {
		degree, sign, word = int(math.Round(float64(s.degree)*1.8+32)), "F", "Fahrenheit"
	}
	if voice {
		return fmt.Sprintf("%s, %d degrees %s, until %d o'clock.", s.words, degree, word, s.until)
	}
	return fmt.Sprintf("%s, %d °%s, until %d:00.", s.words, degree, sign, s.until)
}

// city returns the city in a question: the word after the last in, at, for or of, else the last capitalized word.
func city(question string) string {
	words := strings.FieldsFunc(question, func(r rune) bool { return !unicode.IsLetter(r) && r != '-' })
	last := ""
	for i := len(words) - 1; i >= 0; i-- {
		if i > 0 {
			switch strings.ToLower(words[i-1]) {
			case "in", "at", "for", "of":
				return words[i]
			}
		}
		if last == "" && unicode.IsUpper([]rune(words[i])[0]) {
			last = words[i]
		}
	}
	return last
}
