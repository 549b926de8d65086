package configs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/gateway/oidc"
)

// A Duration is a length of time, written with its unit: "30s", "1h30m", "250ms".
type Duration time.Duration

// UnmarshalText reads a duration; a number without a unit and a negative one are errors.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil || v < 0 {
		return fmt.Errorf("expected a duration with a unit, got %q: for example 30s, 10m or 24h", b)
	}
	*d = Duration(v)
	return nil
}

// String returns the shortest common form: "24h", not "24h0m0s".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText returns the result of String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// A Size is a number of bytes, written with its unit: "256MiB", "4GiB", "64kB".
type Size int64

// units holds the units of sizes, largest first, binary before decimal, as String tries them.
var units = []struct {
	name  string
	bytes int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1},
}

// UnmarshalText reads a size; a number without a unit is an error.
func (z *Size) UnmarshalText(b []byte) error {
	text := string(b)
	for _, u := range units {
		number, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || n < 0 || n*float64(u.bytes) >= math.MaxInt64 || math.IsNaN(n) {
			break
		}
		*z = Size(n * float64(u.bytes))
		return nil
	}
	return fmt.Errorf("expected a size with a unit, got %q: for example 64KiB, 256MiB or 4GiB", text)
}

// String returns the size in the largest unit with a whole number.
func (z Size) String() string {
	for _, u := range units {
		if z != 0 && int64(z)%u.bytes == 0 {
			return strconv.FormatInt(int64(z)/u.bytes, 10) + u.name
		}
	}
	return "0B"
}

// MarshalText returns the result of String.
func (z Size) MarshalText() ([]byte, error) { return []byte(z.String()), nil }

// A Rate is a number of events per second, written with its unit: "50/s", "300/m", "10/h".
type Rate float64

var errRate = errors.New("for example 50/s, 300/m or 10/h")

// UnmarshalText reads a rate; a number without a unit is an error.
func (r *Rate) UnmarshalText(b []byte) error {
	number, unit, _ := strings.Cut(string(b), "/")
	per, known := map[string]float64{"s": 1, "m": 60, "h": 3600}[unit]
	n, err := strconv.ParseFloat(number, 64)
	if !known || err != nil || math.IsNaN(n) || n < 0 || n > 1e9 {
		return fmt.Errorf("expected a rate with a unit, got %q: %w", b, errRate)
	}
	*r = Rate(n / per)
	return nil
}

// String returns the rate per second, or per minute or hour if only that is a whole number.
func (r Rate) String() string {
	for _, u := range []struct {
		name string
		per  float64
	}{{"s", 1}, {"m", 60}, {"h", 3600}} {
		// A rate per hour was divided, so that a whole number may have a rounding error.
		n := math.Round(float64(r)*u.per*1e9) / 1e9
		if n == math.Trunc(n) {
			return strconv.FormatFloat(n, 'f', -1, 64) + "/" + u.name
		}
	}
	return strconv.FormatFloat(float64(r), 'g', -1, 64) + "/s"
}

// MarshalText returns the result of String.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Providers are identity providers: a list of mappings in a file, and JSON in a variable or flag.
type Providers []oidc.Provider

// UnmarshalText reads a JSON list; an unknown member is an error.
func (p *Providers) UnmarshalText(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	all := []oidc.Provider{}
	if err := d.Decode(&all); err != nil || d.More() {
		return fmt.Errorf("expected a list of mappings with name, issuer and audience, and optionally algorithms, type, scopes, claims and ca (%s)",
			strings.TrimPrefix(fmt.Sprint(err), "json: "))
	}
	*p = all
	return nil
}

// String returns the JSON list.
func (p Providers) String() string {
	b, err := json.Marshal(append([]oidc.Provider{}, p...)) // without MarshalText
	if err != nil {
		panic(err) // texts always encode
	}
	return string(b)
}

// MarshalText returns the result of String.
func (p Providers) MarshalText() ([]byte, error) { return []byte(p.String()), nil }
