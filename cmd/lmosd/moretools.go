package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// moreTools returns the tools of an agent that are not in its description, because they exceed its size.
func moreTools(ctx context.Context, c *api.Client, ref string, t *td.Thing) ([]bridge.Tool, error) {
	action := bridge.MoreAction(t)
	if action == "" {
		return nil, nil
	}
	all, err := bridge.ListMoreTools(ctx, func(ctx context.Context, page []byte) ([]byte, error) {
		output, _, err := c.Call(ctx, ref, action, interact.JSON, page)
		return output, err
	})
	return slices.DeleteFunc(all, func(m bridge.Tool) bool { return t.Actions[m.Name] != nil }), err
}

// undescribed returns a tool that is not in the description of its agent, and the action that calls it. If no tool has the name, the
// error is why.
func (c *conversation) undescribed(ctx context.Context, name string, why error) (action *td.Action, by string, err error) {
	all, err := moreTools(ctx, c.client, c.agent.Ref, c.thing)
	if err != nil {
		return nil, "", err
	}
	i := slices.IndexFunc(all, func(m bridge.Tool) bool { return m.Name == name })
	if i < 0 {
		return nil, "", why
	}
	return &td.Action{Input: all[i].Schema()}, bridge.MoreAction(c.thing), nil
}

// named puts the input of a tool into the input of the action that calls it.
func named(o *api.CallOptions, tool string) error {
	if o.Stream != nil || len(o.Body) > 0 && !json.Valid(o.Body) {
		return cli.Usage("give it as name=value, or as JSON", "%s takes arguments", tool)
	}
	arguments := json.RawMessage(o.Body)
	if len(arguments) == 0 {
		arguments = json.RawMessage("{}")
	}
	body, err := json.Marshal(map[string]any{"tool": tool, "arguments": arguments})
	o.Body = body
	return err
}

// addMore adds the tools that are not in the description, or the reason why they are unknown.
func (a *app) addMore(ctx context.Context, s *terminal.Sheet, ref string, t *td.Thing) {
	if bridge.MoreAction(t) == "" {
		return
	}
	client, err := a.client()
	var all []bridge.Tool
	if err == nil {
		all, err = moreTools(ctx, client, ref, t)
	}
	if err != nil {
		s.Add("incomplete", fmt.Sprintf("the agent has more tools than its description lists, and the list failed: %s", interact.AsError(err).Error()))
	}
	for _, m := range all {
		s.Add("action", render.Join(" · ", strings.TrimSpace(m.Name+" "+input.Sample(m.Schema())), m.Description))
	}
}
