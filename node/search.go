package node

import (
	"github.com/lmosd/lmosd/directory/route"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/openai"
)

// Search configures the search in natural language. The zero value is lexical and sends no request.
type Search struct {
	// Method selects the agent for a task (package route); empty means lexical.
	Method route.Method
	// Embeddings computes vectors of Things and queries; Model selects agents.
	Embeddings, Model Endpoint
}

// An Endpoint is an OpenAI-compatible API (package openai). An empty URL means none.
type Endpoint struct{ URL, Model, Key string }

// endpoint returns the client of an endpoint; nil if its URL is empty. The error names key, its key in the configuration.
func (n *Node) endpoint(key string, e Endpoint) (*openai.Client, error) {
	if e.URL == "" {
		return nil, nil
	}
	c, err := openai.New(openai.Options{URL: e.URL, Model: e.Model, Key: e.Key})
	if err != nil {
		return nil, interact.Errorf(interact.ConfigInvalid, "for example "+key+".url: http://127.0.0.1:11434/v1 and "+key+".model: all-minilm",
			"%s: %v", key, err)
	}
	n.life.onClose(func() error { c.Close(); return nil })
	return c, nil
}

// openEndpoints opens the endpoints of Options.Search for the router; the directory uses the embedder, too.
func (n *Node) openEndpoints() (o route.Options, err error) {
	o.Method = n.opts.Search.Method
	if c, err := n.endpoint("search.embeddings", n.opts.Search.Embeddings); err != nil {
		return o, err
	} else if c != nil {
		o.Embedder = c
	}
	if c, err := n.endpoint("search.model", n.opts.Search.Model); err != nil {
		return o, err
	} else if c != nil {
		o.Model = route.OpenAI(c)
	}
	return o, nil
}
