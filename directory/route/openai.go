package route

import (
	"context"

	"github.com/lmosd/lmosd/internal/openai"
)

// OpenAI returns the [Model] behind an OpenAI-compatible endpoint.
func OpenAI(c *openai.Client) Model { return openAI{c} }

type openAI struct{ client *openai.Client }

func (m openAI) Decide(ctx context.Context, prompt string, turns []Turn) (string, error) {
	messages := []openai.Turn{{Role: openai.System, Content: prompt}}
	for _, t := range turns {
		role := openai.User
		if t.assistant() {
			role = openai.Assistant
		}
		messages = append(messages, openai.Turn{Role: role, Content: t.Content})
	}
	return m.client.Complete(ctx, messages, true)
}
