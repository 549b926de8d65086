// Package configcmd implements lmosd config and maps every configuration key to a flag of lmosd run. It
// also creates the logger of the node from the configuration.
package configcmd
