package gateway

import (
	"net/http"
	"strings"

	"github.com/lmosd/lmosd/web"
)

// consolePath is the prefix of the files of the console.
const consolePath = "/console/"

// consoleRoutes returns the routes of the console, by pattern of the mux.
func (g *Gateway) consoleRoutes() map[string]http.Handler {
	if g.o.NoConsole {
		return nil
	}
	files := http.StripPrefix(strings.TrimSuffix(consolePath, "/"), web.Handler(g.o.ConsoleDir))
	return map[string]http.Handler{
		"GET " + consolePath: g.protect(open, func(w http.ResponseWriter, r *http.Request) error {
			files.ServeHTTP(w, r)
			return nil
		}),
	}
}
