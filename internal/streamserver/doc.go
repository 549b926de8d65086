// Package streamserver serves request-response protocols on libp2p streams. It bounds the streams of each peer, their time and the memory
// of their messages, and recovers panics.
package streamserver
