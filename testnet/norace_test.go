//go:build !race

package testnet

// small is the mesh of the usual tests: nodes, agents.
var small = [2]int{32, 60}

// many is the number of nodes of a population.
const many = 200
