// Package sdk tests the Python and JavaScript SDKs and the code of docs/sdk.md.
package sdk
