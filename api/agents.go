package api

import (
	"context"
	"iter"

	"github.com/lmosd/lmosd/td"
)

// Agents returns one page of the index of the node: the matches of q in the order of their references, q.Limit of them, 100 if that is 0 and 1000
// at most. The cursor is Next of the page before, or empty. The node asks no other node. A page after agents have been added or removed neither
// repeats nor lacks others.
func (c *Client) Agents(ctx context.Context, q td.Query, cursor string) (*AgentList, error) {
	v := findValues(q, 0)
	if cursor != "" {
		v.Set("cursor", cursor)
	}
	return get[AgentList](ctx, c, "/v1/agents?"+v.Encode())
}

// AgentPages yields the pages of [Client.Agents] up to the last one, or to one error.
func (c *Client) AgentPages(ctx context.Context, q td.Query) iter.Seq2[*AgentList, error] {
	return func(yield func(*AgentList, error) bool) {
		for cursor := ""; ; {
			page, err := c.Agents(ctx, q, cursor)
			if !yield(page, err) || err != nil || page.Next == "" {
				return
			}
			cursor = page.Next
		}
	}
}
