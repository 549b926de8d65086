// Package interop contains only tests: lmosd with third-party clients and agents of every protocol, across two nodes. They require the
// packages of package.json (npm ci) and some programs of the system; without them tests are skipped or, if the variable CI is set, fail.
// The table of docs/interactions.md has the results of TestMatrix. The conformance suite of MCP is in package conformance, the official
// JSON Schema of TD 1.1 in package tdschema, and Avahi in package avahi.
package interop
