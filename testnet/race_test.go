//go:build race

package testnet

// small is the mesh of the usual tests: the race detector follows 8,128 goroutines at most, and a node has one hundred and more.
var small = [2]int{16, 20}

// many is the number of nodes of a population.
const many = 60
