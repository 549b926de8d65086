package jcs

import "testing"

func TestJoinIsTheInverseOfMembers(t *testing.T) {
	t.Parallel()
	for _, object := range []string{`{}`, `{"b":1.0,"a":{"x":[1,2]}}`, `{"\"":"\u00fc"}`} {
		members, err := Members([]byte(object))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(Join(members)); got != object {
			t.Errorf("got %s, want %s", got, object)
		}
	}
}
