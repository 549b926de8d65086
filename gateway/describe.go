package gateway

import (
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/lmosd/lmosd/gateway/tdd"
)

// signDescription signs the TD of the node. With a listener, the TD describes the directory (WoT Discovery §7.3.4) and its security: on
// loopback, and with an open directory, only changes require the token; otherwise all operations do.
func (g *Gateway) signDescription() (err error) {
	var more map[string]any
	if g.URL() != "" {
		change := "bearer_sc"
		if g.o.NoAuth {
			change = ""
		}
		base := g.o.PublicURL
		if base == "" {
			base = g.localURL()
		}
		more = tdd.Affordances(strings.TrimSuffix(base, "/"), change, true)
		more["securityDefinitions"] = map[string]any{"nosec_sc": map[string]any{"scheme": "nosec"},
			"bearer_sc": map[string]any{"scheme": "bearer", "in": "header"}}
		if !g.guard.loopback && !g.o.OpenDirectory {
			more["security"] = []any{"bearer_sc"}
		}
	}
	g.self, err = g.o.Describe(more)
	return err
}

// Self returns the signed TD of the node.
func (g *Gateway) Self() []byte { return g.self }

// localURL returns the URL of the API for the TD of the node. If the API is announced on the local network, a loopback address is replaced by
// the announced name.
func (g *Gateway) localURL() string {
	port := g.AnnouncedPort()
	if u, err := url.Parse(g.URL()); g.o.LocalName == "" || port == 0 || err != nil || !net.ParseIP(u.Hostname()).IsLoopback() {
		return g.URL()
	}
	return "http://" + net.JoinHostPort(g.o.LocalName, strconv.Itoa(int(port)))
}
