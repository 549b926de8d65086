// Package dnssd implements DNS-SD introductions: it announces the directory of the node and browses the local network.
//
// A [Service] announces one instance of _wot._tcp over multicast DNS, the node's directory, and collects the introductions of others. An
// [Explorer] follows an introduction and fetches its Thing Descriptions, which are unverified. The service ignores hosts outside of the
// networks of this machine, and the explorer does not contact them.
//
// Sources: WoT Discovery §6.3 (introduction by DNS-SD), §5 (exploration); RFC 6762 (multicast DNS); RFC 6763 (DNS-SD).
package dnssd
