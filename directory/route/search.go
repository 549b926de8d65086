package route

import (
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/openai"
)

// Search configures the search in natural language. The zero value is lexical and sends no request.
type Search struct {
	// Method selects the agent for a task; empty means lexical.
	Method Method
	// Embeddings computes vectors of Things and queries; Model selects agents.
	Embeddings, Model Endpoint
}

// An Endpoint is an OpenAI-compatible API (package openai). An empty URL means none.
type Endpoint struct{ URL, Model, Key string }

// Open returns options of a router with the clients of the endpoints, and a function that closes them. The error names the key in the
// configuration.
func (s Search) Open() (o Options, closed func() error, err error) {
	var clients []*openai.Client
	closed = func() error {
		for _, c := range clients {
			c.Close()
		}
		return nil
	}
	open := func(key string, e Endpoint) *openai.Client {
		if e.URL == "" || err != nil {
			return nil
		}
		c, problem := openai.New(openai.Options{URL: e.URL, Model: e.Model, Key: e.Key})
		if problem != nil {
			err = interact.Errorf(interact.ConfigInvalid, "for example "+key+".url: http://127.0.0.1:11434/v1 and "+key+".model: all-minilm",
				"%s: %v", key, problem)
			return nil
		}
		clients = append(clients, c)
		return c
	}
	o.Method = s.Method
	if c := open("search.embeddings", s.Embeddings); c != nil {
		o.Embedder = c
	}
	if c := open("search.model", s.Model); c != nil {
		o.Model = OpenAI(c)
	}
	return o, closed, err
}
