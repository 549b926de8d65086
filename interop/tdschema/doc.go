// Package tdschema contains only tests: package td against the official JSON Schema of TD 1.1 and against the TDs of plugfests.
package tdschema
