// Package interact defines the interaction model: messages, Things that handle them, middleware and errors.
//
// Every participant is a [Thing]: an agent in this process, an agent on another node, a server behind a bridge. A relay is a Thing
// that calls another Thing; so are policies, rate limiters and traces (see [Chain]). The package has no network code: bindings such
// as interact/stream and interact/rest carry messages.
package interact
