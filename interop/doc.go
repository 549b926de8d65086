// Package interop contains only tests: lmosd with third-party clients and agents of every protocol, across two nodes. They need what
// package.json lists (npm ci) and some programs of the system; what is not there is skipped and said, or, where the variable CI is
// set, fails. The table of docs/interactions.md is what TestMatrix saw.
package interop
