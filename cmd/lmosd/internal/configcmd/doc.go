// Package configcmd implements lmosd config and maps every configuration key to a flag of lmosd run.
package configcmd
