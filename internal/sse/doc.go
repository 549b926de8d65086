// Package sse reads and writes server-sent events (HTML Living Standard §9.2).
package sse
