package configs

import (
	"encoding"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func TestValues(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		into       encoding.TextUnmarshaler
		text, want string
	}{
		{new(Duration), "24h", "24h"},
		{new(Duration), "90s", "1m30s"},
		{new(Duration), "60m", "1h"},
		{new(Duration), "1h0m5s", "1h0m5s"},
		{new(Duration), "100ms", "100ms"},
		{new(Duration), "0s", "0s"},
		{new(Size), "256MiB", "256MiB"},
		{new(Size), "1024KiB", "1MiB"},
		{new(Size), "1.5GiB", "1536MiB"},
		{new(Size), "64 kB", "64kB"},
		{new(Size), "5B", "5B"},
		{new(Size), "0B", "0B"},
		{new(Rate), "50/s", "50/s"},
		{new(Rate), "60/m", "1/s"},
		{new(Rate), "90/m", "90/m"},
		{new(Rate), "10/h", "10/h"},
		{new(Rate), "0/s", "0/s"},
	} {
		if err := test.into.UnmarshalText([]byte(test.text)); err != nil {
			t.Errorf("%s: %v", test.text, err)
		}
		if got := fmt.Sprint(deref(test.into)); got != test.want {
			t.Errorf("%s gives %s, want %s", test.text, got, test.want)
		}
	}
}

func deref(v any) any {
	switch v := v.(type) {
	case *Duration:
		return *v
	case *Size:
		return *v
	case *Rate:
		return *v
	}
	return nil
}

func TestWrongValues(t *testing.T) {
	t.Parallel()
	for text, into := range map[string]encoding.TextUnmarshaler{
		"": new(Duration), "30": new(Duration), "-5s": new(Duration), "soon": new(Duration), "1d": new(Duration),
		"256": new(Size), "MiB": new(Size), "-1B": new(Size), "1e30GiB": new(Size), "NaNB": new(Size), "1mib": new(Size),
		"50": new(Rate), "50/d": new(Rate), "/s": new(Rate), "-1/s": new(Rate), "NaN/s": new(Rate), "1e300/s": new(Rate),
	} {
		if err := into.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q gives %v", text, deref(into))
		}
	}
}

func TestValuesReadWhatTheyWrite(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		z := Size(rapid.Int64Range(0, 1<<50).Draw(t, "size"))
		d := Duration(rapid.Int64Range(0, 1<<62).Draw(t, "duration"))
		r := Rate(float64(rapid.IntRange(0, 1e6).Draw(t, "rate")) / rapid.SampledFrom([]float64{1, 60, 3600}).Draw(t, "per"))
		var z2 Size
		var d2 Duration
		var r2 Rate
		for _, v := range []struct {
			from encoding.TextMarshaler
			to   encoding.TextUnmarshaler
		}{{z, &z2}, {d, &d2}, {r, &r2}} {
			text, err := v.from.MarshalText()
			if err != nil {
				t.Fatal(err)
			}
			if err := v.to.UnmarshalText(text); err != nil {
				t.Fatalf("%v is written %s: %v", v.from, text, err)
			}
		}
		if z != z2 || d != d2 || r != r2 {
			t.Fatalf("%v %v %v became %v %v %v", z, d, r, z2, d2, r2)
		}
	})
}

func TestSuggest(t *testing.T) {
	t.Parallel()
	names := []string{"getWeather", "getForecast", "listen", "socket"}
	for word, want := range map[string]string{
		"getWeathr": "getWeather", "getweather": "getWeather", "lissten": "listen", "lisetn": "listen", "sock": "socket", "so": "",
		"": "", "zzz": "", "getFourcast": "getForecast",
	} {
		if got := Suggest(word, names); got != want {
			t.Errorf("%q suggests %q, want %q", word, got, want)
		}
	}
}
