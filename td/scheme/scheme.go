// Package scheme lists the URI schemes of the protocol bindings with their ports and secure variants.
package scheme

import (
	"iter"
	"strings"
)

// A Scheme is a URI scheme of forms that a binding can use.
type Scheme struct {
	Name     string // in lower case: "coaps+tcp"
	Protocol string // the name of the plain variant: "coap"
	Port     string // the default port
	Network  string // the network that the binding dials: "tcp" or "udp"
	IsSecure bool   // over TLS or DTLS
	IsBroker bool   // the host is that of a broker, not of the agent
}

// All are the schemes of the bindings. The plain variant of a protocol is the first of its schemes.
var All = []Scheme{
	{Name: "http", Protocol: "http", Port: "80", Network: "tcp"}, // RFC 9110 §4.2.1
	{Name: "https", Protocol: "http", Port: "443", Network: "tcp", IsSecure: true},
	{Name: "ws", Protocol: "ws", Port: "80", Network: "tcp"}, // RFC 6455 §3
	{Name: "wss", Protocol: "ws", Port: "443", Network: "tcp", IsSecure: true},
	{Name: "mqtt", Protocol: "mqtt", Port: "1883", Network: "tcp", IsBroker: true},
	{Name: "mqtts", Protocol: "mqtt", Port: "8883", Network: "tcp", IsSecure: true, IsBroker: true},
	{Name: "coap", Protocol: "coap", Port: "5683", Network: "udp"}, // RFC 7252 §6.1
	{Name: "coaps", Protocol: "coap", Port: "5684", Network: "udp", IsSecure: true},
	{Name: "coap+tcp", Protocol: "coap", Port: "5683", Network: "tcp"}, // RFC 8323 §8.1
	{Name: "coaps+tcp", Protocol: "coap", Port: "5684", Network: "tcp", IsSecure: true},
}

// Lookup returns the scheme with a name in lower case, or the zero value if no binding has it.
func Lookup(name string) Scheme {
	for _, s := range All {
		if s.Name == name {
			return s
		}
	}
	return Scheme{}
}

// Protocols lists the protocols of the bindings: "http, ws, …".
func Protocols() string {
	var names []string
	for _, s := range All {
		if s.Name == s.Protocol {
			names = append(names, s.Name)
		}
	}
	return strings.Join(names, ", ")
}

// Matching yields the protocols of a query that match a scheme, for a scheme without a binding, too: "coaps+tcp", "coaps" and "coap" match
// "coaps+tcp".
func Matching(name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		both := func(p string) bool { return yield(p) && (!strings.HasSuffix(p, "s") || yield(p[:len(p)-1])) }
		if !both(name) {
			return
		}
		for i := range len(name) {
			if name[i] == '+' && !both(name[:i]) {
				return
			}
		}
	}
}
