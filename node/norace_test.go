//go:build !race

package node

// spare are the objects of a call that the race detector adds.
const spare = 0
