// Package sdk tests the libraries for authors of agents: python/lmosd.py and js/lmosd.mjs, single files without dependencies, and
// the page about them, docs/sdk.md. It holds no code of the node's.
package sdk
