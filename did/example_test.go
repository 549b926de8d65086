package did_test

import (
	"fmt"

	"github.com/lmosd/lmosd/did"
)

// A did:key and a PeerID are two spellings of one key.
func Example() {
	d, err := did.Parse("did:key:z6MkehRgf7yJbgaGfYsdoAsKdBPE3dj2CYhowQdcjqSJgvVd")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(d.PeerText())
	// Output:
	// 12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB
}

// A key has one canonical spelling; others are rejected with a reason.
func ExampleParse() {
	_, err := did.Parse("did:key:1.1:z6MkehRgf7yJbgaGfYsdoAsKdBPE3dj2CYhowQdcjqSJgvVd")
	fmt.Println(err)
	// Output:
	// invalid DID "did:key:1.1:z6MkehRgf7yJbgaGfYsdoAsKdBPE3dj2CYhowQdcjqSJgvVd": a did:key has no version
}
