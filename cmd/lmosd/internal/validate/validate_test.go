package validate

import (
	"os"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	weather, err := os.ReadFile("../../testdata/weather.td.json")
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		raw  string
		err  error
		code interact.Code
	}{
		"valid":     {string(weather), nil, 0},
		"no JSON":   {"{", nil, interact.NotJSON},
		"no TD":     {"{}", nil, interact.BadTD},
		"too large": {"", interact.Errorf(interact.TooLarge, "", "x has more than 5 bytes"), interact.TooLarge},
	} {
		v := judge(t.Context(), name, []byte(test.raw), test.err)
		if v.Valid != (test.code == 0) || !v.Valid && (v.code != test.code || len(v.Issues) == 0) || v.Warnings == nil || v.Issues == nil {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

func TestObstacles(t *testing.T) {
	t.Parallel()
	const head = `"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "x", "security": "n", "securityDefinitions": {"n": {"scheme": "nosec"},
		"p": {"scheme": "psk", "identity": "x"}, "b": {"scheme": "basic"}}`
	for want, body := range map[string]string{
		": describes no action, property or event": ``,
		"/actions/a~1b/forms: none has an address": `, "actions": {"a/b": {"forms": [{"href": "modbus+tcp://127.0.0.1/x"}]}}`,
		"/properties/p/forms: none has an address": `, "properties": {"p": {"forms": [{"href": "/x"}]}}`,
		"/securityDefinitions/p/scheme: a node":    `, "actions": {"a": {"forms": [{"href": "http://127.0.0.1/x", "security": "p"}]}}`,
		"":                                         `, "actions": {"a": {"uriVariables": {"id": {"type": "string"}}, "forms": [{"href": "modbus+tcp://127.0.0.1/x"}, {"href": "http://127.0.0.1/{id}", "security": "b"}]}}, "properties": {"m": {"forms": [{"href": "mqtt://127.0.0.1/x"}]}}, "events": {"e": {"forms": [{"href": "coap://127.0.0.1/x", "op": "subscribeevent"}]}}`,
		"/events/e/forms: none has an address":     `, "events": {"e": {"forms": [{"href": "knx://127.0.0.1/x"}]}}`,
	} {
		thing, err := td.Parse([]byte("{" + head + body + "}"))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, o := range Obstacles(thing) {
			got += o.Pointer + ": " + o.Reason
		}
		if !strings.HasPrefix(got, want) || (want == "") != (got == "") {
			t.Errorf("%s: got %q, want %q", body, got, want)
		}
	}
}
