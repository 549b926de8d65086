// Package configs loads the configuration of a node from defaults, profile, YAML file, environment and flags, in rising precedence.
//
// Every key is a field of [Config], and the comment of the field is its documentation: `lmosd config describe` and the help of `lmosd run`
// print it. A later layer overrides an earlier one: default, profile, file, conf.d/*.yaml, environment, flags. [Load] records the origin of
// each value. profiles.go has the profiles as differences to the defaults, and contexts.go the nodes that commands know by name.
package configs
