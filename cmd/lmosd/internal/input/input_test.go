package input

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// schema reads a data schema; "" is none.
func schema(t testing.TB, text string) *td.Schema {
	t.Helper()
	if text == "" {
		return nil
	}
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return td.ParseSchema(v)
}

const weatherInput = `{"type":"object","properties":{"question":{"type":"string"},"days":{"type":"integer"},"exact":{"type":"boolean"},
	"units":{"type":"array"},"at":{"type":"object"},"limit":{"type":"number"}},"required":["question"]}`

const petInput = `{"type":"object","properties":{"petId":{"type":"integer"},"limit":{"type":"integer"},"deep":{"type":"boolean"},
	"status":{"type":"string","enum":["available","sold"]},"grade":{"enum":[1,2]},"level":{"oneOf":[{"type":"integer"},{"type":"null"}]},
	"ids":{"oneOf":[{"type":"integer"},{"type":"array","items":{"type":"integer"}}]},
	"tags":{"oneOf":[{"type":"string"},{"type":"array","items":{"type":"string"}}]}},"required":["petId"]}`

func TestInput(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		schema string
		words  []string
		want   string
	}{
		"no words":                         {weatherInput, nil, ""},
		"typed by the schema":              {weatherInput, []string{"question=Rain?", "days=3", "exact=true", "limit=1.5"}, `{"question":"Rain?","days":3,"exact":true,"limit":1.5}`},
		"a number stays text for a string": {weatherInput, []string{"question=42"}, `{"question":"42"}`},
		"an equals sign in the value":      {weatherInput, []string{"question=a=b"}, `{"question":"a=b"}`},
		"an empty value":                   {weatherInput, []string{"question="}, `{"question":""}`},
		"lists and objects are JSON":       {weatherInput, []string{`units=["mm"]`, `at={"x":1}`}, `{"units":["mm"],"at":{"x":1}}`},
		"JSON by force":                    {weatherInput, []string{"question:=null", `x:={"y":[1]}`}, `{"question":null,"x":{"y":[1]}}`},
		"an unknown member by force":       {weatherInput, []string{"city:=7"}, `{"city":7}`},
		"a member of an open schema":       {`{"properties":{"a":{}},"additionalProperties":true}`, []string{"city=Bonn", "n=1"}, `{"city":"Bonn","n":"1"}`},
		"a member stated elsewhere":        {`{"properties":{"a":{}},"allOf":[{}]}`, []string{"city=Bonn"}, `{"city":"Bonn"}`},
		"no members are stated":            {`{"type":"object"}`, []string{"city=Bonn"}, `{"city":"Bonn"}`},
		"an object":                        {weatherInput, []string{` {"question": "Rain?"}`}, `{"question": "Rain?"}`},
		"an object without a schema":       {"", []string{`{"a":[1]}`}, `{"a":[1]}`},
		"an array without a schema":        {"", []string{`[1]`}, `[1]`},
		"JSON for a text":                  {`{"type":"string"}`, []string{`{"a":1}`}, `"{\"a\":1}"`},
		"no schema":                        {"", []string{"a=1", "b:=2"}, `{"a":"1","b":2}`},
		"characters of HTML and others":    {"", []string{`a=<b>"ü"`}, `{"a":"<b>\"ü\""}`},
		"one string takes the words":       {`{"type":"string"}`, []string{"Rain", "in", "Bonn?"}, `"Rain in Bonn?"`},
		"one string takes k=v":             {`{"type":"string"}`, []string{"a=b"}, `"a=b"`},
		"one number":                       {`{"type":"integer"}`, []string{"-5"}, `-5`},
		"one list":                         {`{"type":"array"}`, []string{`[1, 2]`}, `[1, 2]`},
		"the whole input as JSON":          {`{"type":"string"}`, []string{`:="text"`}, `"text"`},
		"an enumeration of strings":        {`{"enum":["a","b"]}`, []string{"a"}, `"a"`},
		"an object without a type":         {`{"properties":{"n":{"type":"integer"}}}`, []string{"n=1"}, `{"n":1}`},
		"the variables of an address":      {petInput, []string{"petId=7", "limit=20", "deep=true", "status=sold", "tags=a,b"}, `{"petId":7,"limit":20,"deep":true,"status":"sold","tags":"a,b"}`},
		"a list of one":                    {petInput, []string{"ids=7"}, `{"ids":7}`},
		"a list":                           {petInput, []string{"ids=7", "tags=1", "ids=8", "tags=2"}, `{"ids":[7,8],"tags":["1","2"]}`},
		"a list of an array":               {weatherInput, []string{"units=mm", "units=in"}, `{"units":["mm","in"]}`},
		"one of several types":             {petInput, []string{"level=3"}, `{"level":3}`},
		"null is one of them":              {petInput, []string{"level=null"}, `{"level":null}`},
		"a number of an enumeration":       {petInput, []string{"grade=2"}, `{"grade":2}`},
		"a large number keeps its digits":  {weatherInput, []string{"days=12345678901234567890"}, `{"days":12345678901234567890}`},
	} {
		got, err := inputOf(schema(t, test.schema), test.words)
		if err != nil || string(got) != test.want {
			t.Errorf("%s: got %s, %v; want %s", name, got, err, test.want)
		}
	}
}

func TestWrongInput(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		schema string
		words  []string
		says   string
	}{
		"a word":                  {weatherInput, []string{"Rain?"}, `got "Rain?"`},
		"no name":                 {weatherInput, []string{"=x"}, "expected k=v"},
		"an unknown member":       {weatherInput, []string{"qestion=a"}, `did you mean "question"?`},
		"nothing is similar":      {weatherInput, []string{"zzz=a"}, "its inputs are at, days"},
		"a list for an object":    {weatherInput, []string{"[1]"}, "expected k=v"},
		"an incomplete object":    {weatherInput, []string{`{"days":3`}, "not valid JSON"},
		"only a colon":            {weatherInput, []string{":=1", "a=b"}, "expected k=v"},
		"the same name twice":     {weatherInput, []string{"question=a", "question=b"}, "twice"},
		"no number":               {weatherInput, []string{"days=three"}, `days is an integer, and "three" is none`},
		"no bool":                 {weatherInput, []string{"exact=yes"}, "exact is a boolean"},
		"no list":                 {weatherInput, []string{"units=mm"}, "units is an array"},
		"an object for a list":    {weatherInput, []string{"units={}"}, "units is an array"},
		"no JSON":                 {weatherInput, []string{"x:={"}, "no JSON"},
		"no variable":             {petInput, []string{"petId=x"}, `petId is an integer, and "x" is none`},
		"no element":              {petInput, []string{"ids=7", "ids=x"}, `ids is an integer, and "x" is none`},
		"none of several types":   {petInput, []string{"level=x"}, "level expected"},
		"a list twice":            {petInput, []string{"petId=7", "petId=8"}, "twice"},
		"two numbers":             {`{"type":"number"}`, []string{"1", "2"}, "2 words were given"},
		"text for a number":       {`{"type":"number"}`, []string{"one"}, "the input is a number"},
		"a null that is not null": {`{"type":"null"}`, []string{"x"}, "a null"},
	} {
		_, err := inputOf(schema(t, test.schema), test.words)
		e := interact.AsError(err)
		if e == nil || e.Code != interact.Invalid || !strings.Contains(e.Error()+" "+e.Hint, test.says) || e.Hint == "" && e.Next == nil {
			t.Errorf("%s: got %v; want %q", name, err, test.says)
		}
	}
}

func TestInputFromFiles(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "input")
	if err := os.WriteFile(file, []byte("{\"days\": 3}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		schema, word, stdin, want string
	}{
		"a file":                        {weatherInput, "@" + file, "", `{"days": 3}`},
		"standard input":                {weatherInput, "-", " [1]\n", "[1]"},
		"text for a string":             {`{"type":"string"}`, "-", "two\nlines\n", `"two\nlines"`},
		"JSON is text for a string":     {`{"type":"string"}`, "@" + file, "", `"{\"days\": 3}"`},
		"@- is standard input, too":     {weatherInput, "@-", "1", "1"},
		"other bytes become characters": {`{"type":"string"}`, "-", "a\xffb", `"a\ufffdb"`},
	} {
		a := cli.New(nil, strings.NewReader(test.stdin), &strings.Builder{}, &strings.Builder{})
		got, err := Read(a, schema(t, test.schema), []string{test.word})
		if err != nil || string(got) != test.want {
			t.Errorf("%s: got %s, %v; want %s", name, got, err, test.want)
		}
	}
	a := cli.New(nil, strings.NewReader("no JSON"), &strings.Builder{}, &strings.Builder{})
	for word, want := range map[string]interact.Code{"@" + file + "x": interact.Usage, "-": interact.Invalid, "@" + filepath.Dir(file): interact.Usage} {
		if _, err := Read(a, schema(t, weatherInput), []string{word}); interact.AsError(err) == nil || interact.AsError(err).Code != want {
			t.Errorf("%s gives %v", word, err)
		}
	}
	if _, err := Content(cli.New(nil, strings.NewReader("12345"), nil, nil), "-", 4); interact.AsError(err).Code != interact.TooLarge {
		t.Errorf("too much input gives %v", err)
	}
}

func TestSample(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                  "",
		weatherInput:        "question=…",
		`{"type":"string"}`: "STRING",
		`{"properties":{"b":{"type":"array"},"a":{"enum":["x","y"]}}}`: "a=x b='[]'",
	} {
		if got := Sample(schema(t, text)); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	got := Explain(schema(t, `{"type":"object","required":["b"],"properties":{"a":{"type":"integer","default":3,"unit":"day","description":"How many."},
		"b":{"enum":["x","y"]},"c":{},"d":{"oneOf":[{"type":"integer"},{"type":"array","items":{"type":"integer"}}]}}}`))
	want := "b · x|y · required\na · integer · default 3 · day · How many.\nc · any value\nd · one or several: integer"
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
	if Explain(nil) != nil || Explain(schema(t, `{"type":"string"}`)) != nil {
		t.Error("an input without members is explained")
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                  "",
		`{"type":"string"}`: "STRING",
		weatherInput:        "question=… [at=JSON] [days=INTEGER] [exact=BOOLEAN] [limit=NUMBER] [units=JSON]",
		petInput: "petId=INTEGER [deep=BOOLEAN] [grade=1|2] [ids=INTEGER,…] [level=…] [limit=INTEGER] [status=available|sold]" +
			" [tags=…,…]",
	} {
		if got := Usage(schema(t, text)); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

// FuzzInput shows that whatever the words and the schema are, the input is JSON or there is an error with a hint.
func FuzzInput(f *testing.F) {
	f.Add(weatherInput, "question=Rain?\x00days=3")
	f.Add(weatherInput, "days:=3\x00x=")
	f.Add(`{"type":"string"}`, "Rain in Bonn?")
	f.Add(`{"type":["integer","null"]}`, "-5")
	f.Add(`{"type":"nonsense"}`, ":=[1]")
	f.Add(``, "\xff=\xfe\x00=\x00:=")
	f.Fuzz(func(t *testing.T, schemaText, joined string) {
		var v any
		if json.Unmarshal([]byte(schemaText), &v) != nil {
			v = nil
		}
		got, err := inputOf(td.ParseSchema(v), strings.Split(joined, "\x00"))
		switch {
		case err != nil && interact.AsError(err).Hint == "" && interact.AsError(err).Next == nil:
			t.Errorf("no hint with %v", err)
		case err == nil && !json.Valid(got):
			t.Errorf("%q gives %q", joined, got)
		}
	})
}
