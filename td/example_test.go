package td_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/td"
)

const billing = `{
  "@context": ["https://www.w3.org/2022/wot/td/v1.1"],
  "@type": "lmos:Agent",
  "title": "Billing Agent",
  "securityDefinitions": {"nosec_sc": {"scheme": "nosec"}},
  "security": ["nosec_sc"],
  "lmos:capabilities": [{"id": "urn:telekom:capability:billing:view", "name": "View bills"}],
  "actions": {
    "viewBill": {
      "input": {"type": "object", "properties": {"month": {"type": "integer", "minimum": 1, "maximum": 12}}, "required": ["month"]},
      "forms": [{"href": "https://agents.example/billing/view"}]
    }
  }
}`

// The owner of a TD completes and signs it. The bytes from the network become a description only by verification.
func Example() {
	owner, err := keystore.FromSeed([32]byte{31: 1})
	if err != nil {
		log.Fatal(err)
	}
	thing, err := td.Complete([]byte(billing), owner.DID())
	if err != nil {
		log.Fatal(err)
	}
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	lease := td.Lease{Seq: 1, Now: now, Lifetime: 6 * time.Hour, Hosts: []td.Host{{Node: owner.DID()}}}
	signed, err := td.Sign(thing, owner, lease)
	if err != nil {
		log.Fatal(err)
	}

	fromTheNetwork := &td.Signed{Record: signed.Record} // the TD is inside
	d, err := fromTheNetwork.Verify(context.Background(), td.NewVerifier(did.Keys()), now.Add(time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	form := d.Actions["viewBill"].Forms[0]
	fmt.Println(d.Name(), d.Record.Capabilities)
	fmt.Println(form.Href, form.ContentType)
	fmt.Println(d.Ref())
	// Output:
	// billing-agent [urn:telekom:capability:billing:view viewbill]
	// https://agents.example/billing/view application/json
	// urn:lmos:did:key:z6MkjchhfUsD6mmvni8mCdXHw216Xrm9bQe2mBH1P5RDjVJG:billing-agent
}

func ExampleParse() {
	_, err := td.Parse([]byte(`{
	  "@context": "https://www.w3.org/2022/wot/td/v1.1",
	  "title": "Weather",
	  "securityDefinitions": {"nosec_sc": {"scheme": "nosec"}},
	  "security": ["nosec"],
	  "actions": {"getWeather": {"input": {"type": "text"}}}
	}`))
	if v, ok := err.(*td.ValidationError); ok {
		for _, issue := range v.Issues {
			fmt.Println(issue)
		}
	}
	// Output:
	// /actions/getWeather: "forms" is missing
	// /actions/getWeather/input/type: must be one of "object", "array", "string", "number", "integer", "boolean", "null"
	// /security/0: "nosec" is not in securityDefinitions
}

func ExampleSchema_Check() {
	thing, err := td.Parse([]byte(billing))
	if err != nil {
		log.Fatal(err)
	}
	input := thing.Actions["viewBill"].Input
	fmt.Println(input.Check(map[string]any{"month": 3.0}))
	fmt.Println(input.Check(map[string]any{"month": 13.0}))
	fmt.Println(input.Check(map[string]any{}))
	fmt.Println(input.Properties(), input.Property("month").Type(), input.Required())
	// Output:
	// []
	// [/month: must be at most 12, is 13]
	// ["month" is missing]
	// [month] integer [month]
}

func ExampleLevels() {
	id, ok := td.Normal("urn:Telekom:Capability:Billing")
	fmt.Println(id, ok)
	fmt.Println(td.Levels(id))
	fmt.Println(td.Shard(id) == td.Shard("telekom"))
	// Output:
	// urn:telekom:capability:billing true
	// [telekom telekom:capability telekom:capability:billing]
	// true
}

func ExampleParseRef() {
	for _, s := range []string{"weather", "weather@z6Mkjchh…", "urn:example:weather"} {
		r := td.ParseRef(s)
		fmt.Printf("%q %q %v\n", r.Name, r.Owner, r.Exact())
	}
	// Output:
	// "weather" "" false
	// "weather" "z6Mkjchh" false
	// "urn:example:weather" "" true
}
