// Package server is the A2A HTTP server: Agent Cards and the JSON-RPC and HTTP+JSON bindings of A2A 1.0 and 0.3, at the same URLs.
// Results of agents pass byte for byte; only for clients of 0.3 they are converted.
//
//	/.well-known/agent-card.json          the card of the default agent
//	/a2a                                  JSON-RPC, for the agent that the tenant of the params names; else the default agent
//	/a2a/message:send, /a2a/tasks…        REST, likewise
//	/a2a/{name}                           JSON-RPC, with or without a slash at the end
//	/a2a/{name}/message:send …            REST; also behind /a2a/{name}/{tenant}
//	/a2a/{name}/v1/message:send …         REST of 0.3
//	/a2a/{name}/.well-known/agent-card.json   the card; with 0.3 members as agent.json, and below /a2a/{name}/v1
//
// Sources: A2A 1.0.1 §3.6, §8.2, §9, §11; A2A 0.3.0.
package server
