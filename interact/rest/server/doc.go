// Package server implements the server side of the WoT HTTP binding: it serves Things to HTTP consumers. See [Server]
// for the paths.
//
// A request becomes a message (request.go), is checked against the description and sent to the mesh. The response is one value
// (property.go, reply.go), the state or the output of an action (action.go), or a series of values or events (watch.go): as
// server-sent events (sse.go), a long poll, or by a webhook (webhook.go). The TD of a Thing has forms of this server (td.go).
//
// Sources: WoT Thing Description 1.1; WoT Profile, HTTP Basic, HTTP SSE and HTTP Webhook; RFC 9110, 7240, 8288, 9457; HTML §9.2
// (server-sent events).
package server
