// Package avahi contains only tests: DNS-SD with the Avahi daemon, in a network of its own. They require avahi-daemon, avahi-browse and
// dbus-daemon; without them tests are skipped or, if the variable CI is set, fail.
package avahi
