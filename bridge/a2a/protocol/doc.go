// Package protocol defines the A2A 1.0 data types and encodes them for the JSON-RPC and HTTP+JSON bindings. Values that are passed on
// stay JSON text and are not decoded.
//
// Sources: A2A 1.0.1, "specification.md" and "a2a.proto".
package protocol
