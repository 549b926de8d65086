// Package coap implements the WoT CoAP binding, client and server. [Client.Thing] calls an agent on any CoAP server, over the forms
// of its Thing Description. [Server] serves the Things of the mesh to local CoAP consumers.
//
// # To agents
//
// Package form chooses a form, fills its variables, converts the input and polls actions that run in the background. Here, the CoAP
// vocabulary of the form is read (vocabulary.go), bodies are sent in blocks (transfer.go), the response is checked (codes.go, form.go),
// and resources are observed (observe.go). Package messaging implements CoAP.
//
// # To consumers
//
// See [Server].
//
// Sources: WoT Thing Description 1.1; WoT Binding Templates, CoAP; RFC 7252 (CoAP), 7641 (Observe), 7959 (Block), 8323 (TCP),
// 8132 (FETCH, PATCH), 8516 (4.29), 8768 (Hop-Limit), 9177 (Q-Block: its sizes only), 9290 (problem details), 6690 (link
// format).
package coap
