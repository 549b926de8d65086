package command

import (
	"cmp"
	"encoding/json"

	"github.com/lmosd/lmosd/internal/jcs"
)

// Describe returns the draft of a Thing Description for an agent of this package, for [td.Draft]: its title, its capabilities,
// and its actions with open input and output; without actions there is one called "run". An empty title is name. The short name
// of a thing comes of its title or its id: who knows the owner, and wants another name than that of the title, adds an id that
// ends with it.
func Describe(name, title string, caps []string, actions []string) []byte {
	title = cmp.Or(title, name)
	doc := map[string]any{"title": title}
	if len(actions) == 0 {
		actions = []string{"run"}
	}
	all := map[string]any{}
	for _, action := range actions {
		// An empty schema is any value. The profiles want synchronous to be said: the call ends with the process.
		all[action] = map[string]any{"input": map[string]any{}, "output": map[string]any{}, "safe": false, "idempotent": false,
			"synchronous": true}
	}
	doc["actions"] = all
	doc["lmosd:concurrency"] = maxConcurrent // further calls wait in the queue of the node, which is fair
	if len(caps) > 0 {
		list := make([]any, 0, len(caps))
		for _, id := range caps {
			list = append(list, map[string]any{"id": id, "name": id})
		}
		doc["lmos:capabilities"] = list
	}
	b, err := jcs.Append(nil, doc)
	if err != nil { // text that is not UTF-8: the decoder's replacement is better than none
		b, _ = json.Marshal(doc)
	}
	return b
}
