// Package terminal formats colors, tables, durations, sizes and log lines for terminals. Pipes get full values without colors. Control
// characters of untrusted text are replaced. It does not depend on other packages of lmosd.
package terminal
