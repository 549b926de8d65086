//go:build !race

package testnet

// small is the mesh of the usual tests: nodes, agents.
var small = [2]int{32, 60}
