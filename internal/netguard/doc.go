// Package netguard blocks outbound connections to disallowed address ranges, to prevent server-side request forgery.
//
// A description from the mesh has addresses that its author chose, and so has a card or a document that is fetched. Who
// follows them from inside a network must not become a way into it: to the router's pages, to a database on loopback, to the
// keys that a cloud hands to its machines. A [Guard] is the one place where such connections are made. It resolves names
// itself, looks at every address, and looks again at the address that the socket really connects to, so that a name that
// answers differently the second time (DNS rebinding) gains nothing.
//
// Sources: IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890); RFC 6052, 3056, 4380 for IPv4 inside of IPv6.
package netguard
