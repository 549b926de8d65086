// Package rest implements the client side of the WoT HTTP binding. [Client.Thing] calls an agent that is any HTTP server, over the
// forms of its Thing Description. Package server is the other side: it serves the Things of the mesh to HTTP consumers.
//
// Package form selects a form, expands its variables, converts the input, adds credentials and polls actions that run in the background.
// Package rest reads the declared response (request.go), builds the HTTP request (form.go), reads and checks the response within a limit
// (answer.go), and streams both bodies (chunks.go). Changes and events arrive by one of three subprotocols (observe.go): server-sent
// events (sse.go), longpoll (longpoll.go), or a webhook, which is an HTTP request to an address of this node (webhook.go,
// callbacks.go).
//
// Sources: WoT Thing Description 1.1; WoT Binding Templates, HTTP; WoT Profile, HTTP Basic, HTTP SSE and HTTP Webhook; RFC
// 9110, 9457, 6570; HTML §9.2 (server-sent events).
package rest
