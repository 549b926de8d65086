package access

import (
	"errors"
	"strings"
	"testing"
)

const head = "apiVersion: lmosd/v1\n"

var newRule = Rule{Allow: list{"anyone"}, To: list{"invoke"}, On: list{"weather"}}

const newText = "{allow: anyone, to: invoke, on: weather}"

func TestAppend(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, after string }{
		"to an empty file":       {"", header + head + "rules:\n  - " + newText + "\n"},
		"to a file without any":  {head, head + "rules:\n  - " + newText + "\n"},
		"to an empty list":       {head + "rules:\n", head + "rules:\n  - " + newText + "\n"},
		"to an empty flow list":  {head + "rules: [] # none yet\n", head + "rules: [" + newText + "] # none yet\n"},
		"after the last one":     {head + "rules:\n  - {deny: own, to: '*'} # why\n\n# end\n", head + "rules:\n  - {deny: own, to: '*'} # why\n  - " + newText + "\n\n# end\n"},
		"without an end of line": {head + "rules:\n- {deny: own, to: '*'}", head + "rules:\n- {deny: own, to: '*'}\n- " + newText + "\n"},
		"after one of many lines": {head + "rules:\n  # first\n  - deny: own\n    to:\n      - call\n    # inside\n    when: |\n      context.hops < 3 &&\n\n      context.hops > 1\n",
			head + "rules:\n  # first\n  - deny: own\n    to:\n      - call\n    # inside\n    when: |\n      context.hops < 3 &&\n\n      context.hops > 1\n  - " + newText + "\n"},
		"before other members": {"rules:\n- {deny: own, to: '*'}\n\n" + head, "rules:\n- {deny: own, to: '*'}\n- " + newText + "\n\n" + head},
		"to a list in brackets": {"{apiVersion: lmosd/v1, rules: [{deny: [ö, own], to: \"*\"}]}\n",
			"{apiVersion: lmosd/v1, rules: [{deny: [ö, own], to: \"*\"}, " + newText + "]}\n"},
		"with line ends of DOS":  {"apiVersion: lmosd/v1\r\nrules:\r\n  - {deny: own, to: '*'}\r\n", "apiVersion: lmosd/v1\r\nrules:\r\n  - {deny: own, to: '*'}\r\n  - " + newText + "\r\n"},
		"to the second document": {head + "rules:\n  - {deny: own, to: '*'}\n---\n" + head + "rules:\n  - {deny: own, to: call}\n", head + "rules:\n  - {deny: own, to: '*'}\n---\n" + head + "rules:\n  - {deny: own, to: call}\n  - " + newText + "\n"},
		"to comments":            {"# mine\n", "# mine\n" + head + "rules:\n  - " + newText + "\n"},
		"to an alias":            {head + "a: &x []\nrules: *x\n", ""},
	} {
		got, err := Append("policy.yaml", []byte(c.before), newRule)
		switch {
		case c.after == "" && err == nil:
			t.Errorf("%s: got %q, %v; want an error", name, got, err)
		case c.after != "" && (err != nil || string(got) != c.after):
			t.Errorf("%s: got %v\n%s\nwant\n%s", name, err, got, c.after)
		}
	}
	for _, bad := range []string{"rules: [", "a: b", "apiVersion: lmosd/v2"} {
		if _, err := Append("policy.yaml", []byte(bad), newRule); !errors.As(err, new(*Error)) {
			t.Errorf("%q: got %v", bad, err)
		}
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before string
		lines  []int
		after  string
	}{
		"one of three":  {head + "rules:\n  - {deny: a, to: call}\n  # about b\n  - {deny: b, to: call}\n  - {deny: c, to: call}\n", []int{5}, head + "rules:\n  - {deny: a, to: call}\n  # about b\n  - {deny: c, to: call}\n"},
		"of many lines": {head + "rules:\n  - deny: a\n    to: call\n\n  -\n    deny: b\n    to: call\n# end\n", []int{3, 7}, head + "rules:\n\n# end\n"},
		"all":           {head + "rules:\n- {deny: a, to: call}\n- {deny: b, to: call}\n", []int{3, 4}, head + "rules:\n"},
		"in brackets":   {head + "rules: [{deny: a, to: call}]\n", []int{2}, head + "rules: []\n"},
		"the first":     {head + "rules: [{deny: a, to: call},\n {deny: b, to: call}]\n", []int{2}, head + "rules: [\n {deny: b, to: call}]\n"},
		"the last":      {head + "rules: [{deny: a, to: call}, \n {deny: b, to: call}]\n", []int{3}, ""},
		"both":          {head + "rules: [{deny: a, to: call}, {deny: b, to: call}]\n", []int{2}, head + "rules: []\n"},
	} {
		got, err := Remove("policy.yaml", []byte(c.before), c.lines)
		switch {
		case c.after == "" && err == nil && strings.Contains(string(got), "deny: b"):
			t.Errorf("%s: got %q, %v", name, got, err)
		case c.after != "" && (err != nil || string(got) != c.after):
			t.Errorf("%s: got %v\n%s\nwant\n%s", name, err, got, c.after)
		}
	}
}

func TestRuleText(t *testing.T) {
	t.Parallel()
	for _, r := range []Rule{newRule, {Deny: list{"did:key:z6Mk", "token:a b", "no", "1"}, To: list{"*"}}, {Allow: list{"acme/ops"}, To: list{"find", "call"}, On: list{"x/a*", "cap:urn:x"},
		When: `context.input.name == "a: b" && context.hops < 3 # not a comment`}, {Allow: list{"#x", "- y", "a,b", "ö"}, To: list{"call"}}} {
		text, err := Append("policy.yaml", nil, r)
		if err != nil {
			t.Errorf("%s: %v", r.Text(), err)
		} else if !strings.HasSuffix(string(text), "  - "+r.Text()+"\n") {
			t.Errorf("%s: got %s", r.Text(), text)
		}
	}
}

func FuzzEdit(f *testing.F) {
	for _, seed := range []string{"", head, head + "rules:\n  - {deny: a, to: call}\n", head + "rules: [{deny: a, to: call}]", head + "rules:\n  - deny: a\n    to: call\n# x\n"} {
		f.Add(seed, 3)
	}
	f.Fuzz(func(t *testing.T, text string, line int) {
		before, err := parseRules("policy.yaml", []byte(text))
		if err != nil {
			return
		}
		if got, err := Append("policy.yaml", []byte(text), newRule); err == nil {
			if after, err := parseRules("policy.yaml", got); err != nil || len(after.rules()) != len(before.rules())+1 {
				t.Errorf("appended to %q: %q, %v", text, got, err)
			}
		}
		if got, err := Remove("policy.yaml", []byte(text), []int{line}); err == nil {
			if after, err := parseRules("policy.yaml", got); err != nil || len(after.rules()) > len(before.rules()) {
				t.Errorf("removed from %q: %q, %v", text, got, err)
			}
		}
	})
}
