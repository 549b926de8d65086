// Package messaging implements the CoAP messaging layer (RFC 7252 §4): codec, retransmission, deduplication, block-wise transfer and
// connections, without the interaction model.
//
// A client gets a connection from a [Pool] and sends requests over a [Call]. A server reads a [Socket], detects duplicates with
// [Replays], sends confirmable messages through a [Layer], and stores bodies in transfer in a [BlockStore].
//
// Options and codes come from the module go-coap, which also writes the messages and reads their options. Its connections, its
// block-wise transfer and its server are not used: one slow request blocks the whole server; bodies in blocks are unlimited, and are
// matched by token, which real clients change from block to block; a Reset counts as an acknowledgement; and Close does not wait for its
// goroutines.
//
// Sources: RFC 7252 (CoAP), 7641 (Observe), 7959 (Block), 8323 (TCP), 8132 (FETCH, PATCH), 8768 (Hop-Limit), 9175 (Request-Tag).
package messaging
