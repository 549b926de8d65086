// Package coap implements the WoT CoAP binding, client and server. [Client.Thing] calls an agent on any CoAP server, over the forms
// of its Thing Description. [Server] serves the Things of the mesh to local CoAP consumers.
//
// # To agents
//
// Package form selects a form, expands its variables, converts the input and polls actions that run in the background. Package coap reads
// the CoAP vocabulary of the form (vocabulary.go), sends bodies in blocks (transfer.go), checks the response (codes.go, form.go) and
// observes resources (observe.go). Package messaging implements CoAP.
//
// # To consumers
//
// A [Server] accepts requests (server.go), assigns them to Things and affordances (dispatch.go, resource.go), answers them (exchange.go) and
// notifies observers (watch.go).
//
// Sources: WoT Thing Description 1.1; WoT Binding Templates, CoAP; RFC 7252 (CoAP), 7641 (Observe), 7959 (Block), 8323 (TCP),
// 8132 (FETCH, PATCH), 8516 (4.29), 8768 (Hop-Limit), 9177 (Q-Block: its sizes only), 9290 (problem details), 6690 (link
// format).
package coap
