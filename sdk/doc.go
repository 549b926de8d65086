// Package sdk tests the Python and JavaScript SDKs and the code of docs/sdk.md. It holds no code of the node's.
package sdk
