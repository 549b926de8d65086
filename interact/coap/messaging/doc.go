// Package messaging implements the CoAP messaging layer (RFC 7252 §4): codec, retransmission, deduplication, block-wise transfer and
// connections, without the interaction model.
//
// A client gets a connection from a [Pool] and sends requests over a [Call]. A server reads a [Socket], detects duplicates with
// [Replays], counts its callers with a [Gate], sends what must arrive through a [Layer], and keeps bodies that travel in blocks
// on a [Shelf].
//
// Options and codes come from the module go-coap, which also writes the messages and reads their options. Its connections, its
// block-wise transfer and its server are not used: a peer that is slow to be answered holds up all others of a server; what is
// sent in blocks has no limit, and is kept by token, which real clients change from block to block; a Reset counts as an
// acknowledgement; and its goroutines have nobody who waits for them.
//
// Sources: RFC 7252 (CoAP), 7641 (Observe), 7959 (Block), 8323 (TCP), 8132 (FETCH, PATCH), 8768 (Hop-Limit), 9175 (Request-Tag).
package messaging
