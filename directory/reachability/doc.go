// Package reachability records which nodes and agents could be reached, and probes the nodes that could not.
package reachability
