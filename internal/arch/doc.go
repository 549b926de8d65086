// Package arch tests which packages may import each other and which package may import each external module. Its test reads the
// import statements of the source itself and fails on anything that the plan does not allow. A new direction or a new module is a
// decision: a row here with its reason. Further tests hold the rules on names, language, comments, hints and pages.
package arch
