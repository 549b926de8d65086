package backend_test

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// The revision of a server is detected from each form of its response.
func TestProbe(t *testing.T) {
	t.Parallel()
	const (
		ready           = `"result":{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"s"}}`
		modern          = `"result":{"supportedVersions":["2026-07-28"],"capabilities":{}}`
		unknown         = `"error":{"code":-32601,"message":"no"}`
		another         = `"error":{"code":-32022,"message":"no","data":{"supported":["2026-07-28"]}}`
		older           = `"error":{"code":-32022,"message":"no","data":{"supported":["2025-06-18"]}}`
		transportErrors = `"error":{"code":-32603,"message":"wants a login","data":{"code":"LMOS-1401","hint":"log in"}}`
	)
	for name, test := range map[string]struct {
		discover, initialize string // responses in order; the last one repeats
		want                 string
	}{
		"new":                              {modern, unknown, "modern"},
		"old":                              {unknown, ready, "2025-06-18"},
		"old, and answers everything":      {`"result":{}`, ready, "2025-06-18"},
		"old, and knows the question":      {`"result":{"supportedVersions":["2025-06-18"]}`, ready, "2025-06-18"},
		"old, and says something odd":      {`"result":{"supportedVersions":7}`, ready, "2025-06-18"},
		"new, and refuses the first time":  {another + "\n" + modern, unknown, "modern"},
		"new, and refuses again and again": {another, unknown, "rejects server/discover"},
		"refuses the new":                  {older, ready, "2025-06-18"},
		"neither":                          {unknown, unknown, "rejects server/discover"},
		"a carrier that wants a login":     {transportErrors, transportErrors, "LMOS-1401"},
	} {
		answers := map[string][]string{protocol.Discover: strings.Split(test.discover, "\n"), protocol.Initialize: {test.initialize}}
		b := backend.New(backend.Options{Name: "s", Dial: func(ctx context.Context) (protocol.Conn, error) {
			here, there := net.Pipe()
			go func() {

				c := protocol.Lines(there)
				defer c.Close()
				for {
					m, err := c.Read(ctx)
					if err != nil {
						return
					}
					all := answers[m.Method()]
					if len(all) == 0 {
						continue
					}
					if len(all) > 1 {
						answers[m.Method()] = all[1:]
					}
					r, err := protocol.Parse([]byte(`{"jsonrpc":"2.0","id":` + string(m.ID()) + `,` + all[0] + `}`))
					if err != nil || c.Write(ctx, r) != nil {
						return
					}
				}
			}()
			return protocol.Lines(here), nil
		}})
		info, err := b.Info(t.Context())
		got := ""
		switch {
		case err != nil:
			got = interact.AsError(err).Code.String() + " " + err.Error()
		case info.Modern:
			got = "modern"
		default:
			got = info.Legacy
		}
		if !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
		b.Close()
	}
}
