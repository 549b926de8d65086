//go:build race

package node

// spare are the objects of a call that the race detector adds: it drops a part of those in pools.
const spare = 3
