package configs

import (
	"encoding"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lmosd/lmosd/gateway/oidc"
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

// Identity providers are mappings in a file, and JSON in a variable; both give the same configuration, which a written file keeps.
func TestIdentityProviders(t *testing.T) {
	t.Parallel()
	want := Providers{{Name: "acme", Issuer: "https://login.acme.example", Audience: "https://node.acme.example", Algorithms: []string{"RS256"},
		Scopes: map[string][]string{"lmos.call": {"call"}}, Claims: map[string]map[string][]string{"groups": {"adjusters": {"adjuster"}}}, CA: "/etc/ca.pem"}}
	path := file(t, `http:
  oidc:
    - name: acme # the company
      issuer: https://login.acme.example
      audience: https://node.acme.example
      algorithms: [RS256]
      scopes: {lmos.call: [call]}
      claims: {groups: {adjusters: [adjuster]}}
      ca: /etc/ca.pem
`)
	inFile, err := Load(LoadOptions{File: path})
	if err != nil {
		t.Fatal(err)
	}
	written := file(t, string(inFile.YAML(true)))
	for name, o := range map[string]LoadOptions{"a file": {File: path}, "a variable": {Env: []string{"LMOSD_HTTP__OIDC=" + want.String()}},
		"a flag": {Flags: map[string][]string{"http.oidc": {want.String()}}}, "a written file": {File: written}} {
		c, err := Load(o)
		if err != nil || !cmp.Equal(c.HTTP.OIDC, want) {
			t.Errorf("%s: %+v, %v", name, c, err)
			continue
		}
		if options, err := c.Options(); err != nil || !cmp.Equal(options.OIDC, []oidc.Provider(want)) {
			t.Errorf("%s: the options of the node have %+v, %v", name, options.OIDC, err)
		}
	}
	for text, reason := range map[string]string{
		"{name: acme}": "expected a list of mappings", "[acme]": "expected a list of mappings", "[{name: acme, isuer: x}]": `unknown field "isuer"`,
		"[{name: acme}]": "expected the URL of the issuer", "[{name: acme, issuer: 'https://a.example', audience: 7}]": "expected a list of mappings",
		"[{name: acme, issuer: 'https://a.example', audience: x, algorithms: [none]}]": "expected algorithms of",
	} {
		if p := problemsOf(t, LoadOptions{File: file(t, "http:\n  oidc: "+text+"\n")})[0]; !strings.Contains(p.Reason, reason) || p.Hint == "" {
			t.Errorf("%s: %s (%s)", text, p.Reason, p.Hint)
		}
	}
}
