package features

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// maxLive bounds the number of live tools.
const maxLive = 2000

// Omitted returns the number of tools, prompts and resources that do not fit into the TD.
func Omitted(t *td.Thing) int {
	if bridge.MoreAction(t) == "" {
		return 0
	}
	var doc struct {
		N any `json:"mcp:omitted"`
	}
	_ = json.Unmarshal(t.Raw, &doc) // the TD is valid JSON
	return omitted(doc.N)
}

func omitted(v any) int {
	n, _ := v.(float64)
	return int(min(max(n, 0), maxLive))
}

// With returns the features with the tools that the server lists now, for a TD that omits some ([Features.Omitted]). Tools with an
// invalid name or without a schema are left out.
func (f *Features) With(listed []json.RawMessage) *Features {
	c := *f
	c.Tools, c.byTool = slices.Clone(f.Tools), map[string]*Tool{}
	at := map[string]int{}
	for i, t := range c.Tools {
		at[t.Name], c.byTool[t.Name] = i, t
	}
	for _, raw := range listed[:min(len(listed), maxLive)] {
		t := &Tool{}
		if json.Unmarshal(raw, t) != nil || t.Name == "" || len(t.Name) > maxLiveName || interact.Readable(t.Name) != t.Name || !usable(t.Input) {
			continue
		}
		if !usable(t.Output) {
			t.Output = nil
		}
		t.Meta, t.Key, t.kind, t.shape = nil, t.Name, interact.InvokeAction, shape{schema: t.Input}
		i, described := at[t.Name]
		if described {
			t.Key = c.Tools[i].Key
			c.Tools[i] = t
		} else {
			at[t.Name] = len(c.Tools)
			c.Tools = append(c.Tools, t)
		}
		c.byTool[t.Name] = t
	}
	slices.SortFunc(c.Tools, func(a, b *Tool) int { return strings.Compare(a.Name, b.Name) })
	return &c
}

// maxLiveName bounds a tool name, in bytes.
const maxLiveName = 1 << 10
