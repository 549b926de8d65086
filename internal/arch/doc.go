// Package arch holds the project's floor plan: which package may import which, and which package is the home of each
// foreign module. Its test reads the import statements of the source itself and fails on anything that the plan does not
// allow. A new direction or a new module is a decision: a row here with its reason.
package arch
