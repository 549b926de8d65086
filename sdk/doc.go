// Package sdk has the files of the Python and JavaScript SDKs, and tests them and the code of docs/sdk.md.
package sdk

import _ "embed"

// Python is the SDK for Python, the file lmosd.py.
//
//go:embed python/lmosd/__init__.py
var Python string

// JavaScript is the SDK for JavaScript, the file lmosd.mjs.
//
//go:embed js/lmosd.mjs
var JavaScript string

// Types are the types of the SDK for JavaScript, the file lmosd.d.mts.
//
//go:embed js/lmosd.d.mts
var Types string
