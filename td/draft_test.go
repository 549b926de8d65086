package td

import (
	"strings"
	"testing"

	"github.com/lmosd/lmosd/did"
)

const anOwner = did.DID("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH")

func TestDraftCompletesTheDescription(t *testing.T) {
	t.Parallel()
	raw, err := Draft([]byte(`{"title": "Echo", "actions": {"say it": {"input": {"type": "string"}}},
		"properties": {"mood": {"type": "string", "observable": true}, "secret": {"type": "string", "writeOnly": true}},
		"events": {"done": null}}`))
	if err != nil {
		t.Fatal(err)
	}
	d, err := Complete(raw, anOwner)
	if err != nil {
		t.Fatal(err)
	}
	for want, got := range map[string][]Form{
		"lmos:/actions/say%20it invokeaction":                                                d.Actions["say it"].Forms,
		"lmos:/properties/mood readproperty writeproperty observeproperty unobserveproperty": d.Properties["mood"].Forms,
		"lmos:/properties/secret writeproperty":                                              d.Properties["secret"].Forms,
		"lmos:/events/done subscribeevent unsubscribeevent":                                  d.Events["done"].Forms,
	} {
		if len(got) != 1 || got[0].Href+" "+strings.Join(got[0].Ops, " ") != want {
			t.Errorf("got %+v, want %s", got, want)
		}
	}
	if len(d.Types) != 1 || d.Types[0] != "lmos:Agent" || d.SecurityDefs["nosec_sc"] == nil {
		t.Errorf("types %v, security %v", d.Types, d.SecurityDefs)
	}
}

func TestDraftKeepsExistingMembers(t *testing.T) {
	t.Parallel()
	raw, err := Draft([]byte(`{"@context": "https://www.w3.org/2022/wot/td/v1.1", "@type": "lmos:Tool", "title": "T",
		"security": "b", "securityDefinitions": {"b": {"scheme": "basic"}},
		"actions": {"a": {"forms": [{"href": "http://127.0.0.1/a"}]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	d, err := Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	if d.Types[0] != "lmos:Tool" || d.Actions["a"].Forms[0].Href != "http://127.0.0.1/a" || d.SecurityDefs["nosec_sc"] != nil {
		t.Errorf("got %s", raw)
	}
}

func TestDraftRejects(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{``, `[]`, `null`, `"x"`, `{"actions": []}`, `{"events": {"e": 1}}`} {
		if _, err := Draft([]byte(raw)); err == nil {
			t.Errorf("%s: no error", raw)
		}
	}
}
