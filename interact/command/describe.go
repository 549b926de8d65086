package command

import (
	"cmp"
	"encoding/json"

	"github.com/lmosd/lmosd/internal/jcs"
)

// Describe returns the draft of a Thing Description for an agent of this package, for [td.Draft]: its title, its capabilities,
// and its actions with any input and output. The default action is "run". The default title is name. The short name of a Thing is made
// from its title or its id: for a name that differs from the title, the caller adds an id that ends with the name.
func Describe(name, title string, caps []string, actions []string) []byte {
	title = cmp.Or(title, name)
	doc := map[string]any{"title": title}
	if len(actions) == 0 {
		actions = []string{"run"}
	}
	all := map[string]any{}
	for _, action := range actions {
		// An empty schema is any value. The WoT Profile requires synchronous. The call ends with the process.
		all[action] = map[string]any{"input": map[string]any{}, "output": map[string]any{}, "safe": false, "idempotent": false,
			"synchronous": true}
	}
	doc["actions"] = all
	doc["lmosd:concurrency"] = maxConcurrent // further calls wait in the fair queue of the node
	if len(caps) > 0 {
		list := make([]any, 0, len(caps))
		for _, id := range caps {
			list = append(list, map[string]any{"id": id, "name": id})
		}
		doc["lmos:capabilities"] = list
	}
	b, err := jcs.Append(nil, doc)
	if err != nil { // invalid UTF-8: json.Marshal replaces it
		b, _ = json.Marshal(doc)
	}
	return b
}
