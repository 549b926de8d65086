// Package didtest provides keys for tests.
package didtest

import "github.com/lmosd/lmosd/did/keystore"

// Key returns the nth test key, which is the same in every run.
func Key(n int) *keystore.Key {
	return must(keystore.FromSeed([32]byte{byte(n), byte(n >> 8), 1}))
}

// NewKey returns a random key.
func NewKey() *keystore.Key { return must(keystore.New()) }

func must(k *keystore.Key, err error) *keystore.Key {
	if err != nil {
		panic(err)
	}
	return k
}
