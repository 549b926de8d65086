// Package conformance contains only tests: the conformance suite of MCP, and servers of other projects, through two nodes. They require the
// packages that npm ci installs in interop; without them tests are skipped or, if the variable CI is set, fail.
package conformance
