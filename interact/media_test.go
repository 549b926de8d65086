package interact

import (
	"bytes"
	"encoding/hex"
	"testing"
)

func TestTranscode(t *testing.T) {
	t.Parallel()
	unhex := func(s string) []byte {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, c := range map[string]struct {
		data     []byte
		from, to string
		want     []byte
		media    string
		bad      bool
	}{
		"an object to CBOR":            {[]byte(`{"b": 1.5, "a": [1, true, null, "x"]}`), JSON, CBOR, unhex("a261618401f5f66178" + "6162f93e00"), CBOR, false},
		"an object to JSON":            {unhex("a261618401f5f661786162f93e00"), CBOR, JSON, []byte(`{"a":[1,true,null,"x"],"b":1.5}`), JSON, false},
		"a vendor's JSON":              {[]byte(`1`), "application/td+json", CBOR, unhex("01"), CBOR, false},
		"a negative integer":           {[]byte(`-500`), "", CBOR, unhex("3901f3"), CBOR, false},
		"bytes become text":            {unhex("43010203"), CBOR, JSON, []byte(`"AQID"`), JSON, false},
		"one family":                   {[]byte(` {"a": 1}`), JSON, "application/senml+json", []byte(` {"a": 1}`), JSON, false},
		"no target type":               {unhex("01"), CBOR, "", unhex("01"), CBOR, false},
		"a picture stays":              {[]byte{0xff}, "image/png", JSON, []byte{0xff}, "image/png", false},
		"JSON to a picture stays":      {[]byte(`1`), JSON, "image/png", []byte(`1`), JSON, false},
		"no data":                      {nil, JSON, CBOR, nil, JSON, false},
		"broken JSON":                  {[]byte(`{`), JSON, CBOR, nil, "", true},
		"a name twice":                 {[]byte(`{"a":1,"a":2}`), JSON, CBOR, nil, "", true},
		"a map with numbers":           {unhex("a10102"), CBOR, JSON, nil, "", true},
		"a name twice in CBOR":         {unhex("a2616101616102"), CBOR, JSON, nil, "", true},
		"half an item":                 {unhex("a2"), CBOR, JSON, nil, "", true},
		"two items":                    {unhex("0101"), CBOR, JSON, nil, "", true},
		"more digits than a float has": {unhex("1b0020000000000001"), CBOR, JSON, nil, "", true},
		"a number of 16 digits":        {unhex("1b001fffffffffffff"), CBOR, JSON, []byte(`9007199254740991`), JSON, false},
	} {
		got, media, err := Transcode(c.data, c.from, c.to)
		if (err != nil) != c.bad || !c.bad && (!bytes.Equal(got, c.want) || media != c.media) {
			t.Errorf("%s: got %x %s %s, %v; want %x %s", name, got, got, media, err, c.want, c.media)
		}
		if c.bad && AsError(err).Code != Invalid {
			t.Errorf("%s: got %v, want Invalid", name, err)
		}
	}
}

func TestValueOfOtherMediaIsUnknown(t *testing.T) {
	t.Parallel()
	if v, ok, err := Value([]byte("x"), "text/plain"); v != nil || ok || err != nil {
		t.Errorf("got %v, %t, %v", v, ok, err)
	}
	if v, ok, err := Value(nil, ""); v != nil || !ok || err != nil {
		t.Errorf("no data: got %v, %t, %v", v, ok, err)
	}
}

// FuzzTranscode: converted data can be converted back without a difference.
func FuzzTranscode(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5,"x",null,true]}`, `-1`, `1e300`, `""`, `[[[]]]`, "\xa1\x61a\x01", "\x1b\xff\xff\xff\xff\xff\xff\xff\xff"} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, fromJSON bool) {
		from, to := CBOR, JSON
		if fromJSON {
			from, to = JSON, CBOR
		}
		out, media, err := Transcode(data, from, to)
		if err != nil || len(data) == 0 {
			return
		}
		if media != to {
			t.Fatalf("%x became %s", data, media)
		}
		back, _, err := Transcode(out, to, from)
		if err != nil {
			t.Fatalf("%q became %q, which does not convert back: %v", data, out, err)
		}
		again, _, err := Transcode(back, from, to)
		if err != nil || !bytes.Equal(again, out) {
			t.Fatalf("%q became %q, then %q, then %q, %v", data, out, back, again, err)
		}
	})
}
