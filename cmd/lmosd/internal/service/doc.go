// Package service runs a node as a service of systemd: the commands lmosd service and lmosd upgrade, and the messages of lmosd run to systemd.
package service
