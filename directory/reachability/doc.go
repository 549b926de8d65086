// Package reachability has the state of nodes and agents: which of them could be reached, and when to probe those that could not.
//
// It has no network code: package presence reports to it, and Options has the function of a probe.
package reachability
