package mcp

import (
	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/facade"
)

// Export implements [bridge.Bridge]: package facade serves the things.
func (b *Bridge) Export(m bridge.Mesh) bridge.Handler {
	return facade.New(facade.Options{Mesh: m, Pins: b.o.Pins, Version: b.o.Version, Log: b.o.Log})
}
