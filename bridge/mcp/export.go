package mcp

import (
	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/aggregator"
)

// Export implements [bridge.Bridge]. Package aggregator serves the Things.
func (b *Bridge) Export(m bridge.Mesh) bridge.Handler {
	return aggregator.New(aggregator.Options{Mesh: m, Pins: b.o.Pins, Version: b.o.Version, Log: b.o.Log})
}
