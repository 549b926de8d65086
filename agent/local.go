package agent

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/ws"
)

func local() (node, token string) {
	token = os.Getenv("LMOSD_TOKEN")
	if node = os.Getenv("LMOSD_NODE"); node != "" {
		return node, token
	}
	dir := dataDir()
	socket := filepath.Join(dir, "lmosd.sock")
	if _, err := os.Stat(socket); err == nil {
		return socket, token
	}
	if token == "" {
		raw, err := os.ReadFile(filepath.Join(dir, "api.token"))
		if err == nil {
			token = strings.TrimSpace(string(raw))
		}
	}
	return api.DefaultURL, token
}

// dataDir returns the default data folder.
func dataDir() string {
	if dir := os.Getenv("LMOSD_DATA_DIR"); dir != "" {
		return dir
	}
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "lmosd")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "." // the next step reports that no node runs
	}
	return filepath.Join(home, ".local", "share", "lmosd")
}

// socketOf returns the WebSocket address of a node: node is a URL, or the path of a socket, with or without "unix:".
func socketOf(node string) (ws.AttachOptions, error) {
	if path, ok := api.SocketPath(node); ok {
		return ws.AttachOptions{URL: "ws://localhost/ws", Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}}, nil
	}
	rest, ok := strings.CutPrefix(node, "http")
	if !ok {
		return ws.AttachOptions{}, interact.Errorf(interact.Usage, "for example "+api.DefaultURL,
			"expected the URL or the socket of a node, got %q", node)
	}
	return ws.AttachOptions{URL: "ws" + strings.TrimSuffix(rest, "/") + "/ws"}, nil
}
