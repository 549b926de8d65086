package service

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/internal/sdnotify"
)

// Notify reports a node that serves to systemd until ctx ends or stop is called: that it is ready, its status line, and to the watchdog
// that it answers. It then reports that the node stops, for which stop waits. Without systemd, Notify does nothing.
func Notify(ctx context.Context, client *api.Client, log *slog.Logger) (stop func()) {
	if !sdnotify.IsEnabled() {
		return func() {}
	}
	failed := func(err error) {
		if err != nil {
			log.Warn("message to the service manager failed", "err", err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	status, err := health(ctx, client)
	if err != nil {
		status = "ready"
	}
	failed(sdnotify.Ready(status))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		failed(sdnotify.Watch(ctx, func(ctx context.Context) (string, error) { return health(ctx, client) }))
		<-ctx.Done()
		failed(sdnotify.Stopping("calls that run may finish"))
	}()
	return func() {
		cancel()
		<-ended
	}
}

// health asks the API of the node whether it is ready, as GET /readyz does, and for what its status line counts: a node that cannot answer
// both in time is not healthy.
func health(ctx context.Context, client *api.Client) (string, error) {
	if err := client.Ready(ctx); err != nil {
		return "", err
	}
	s, err := client.Status(ctx)
	if err != nil {
		return "", err
	}
	line := terminal.Count(s.Peers.Total, "peer", "peers") + ", " + terminal.Count(s.Agents.Local, "agent", "agents")
	if s.State != "ready" {
		line = s.State + ": " + line
	}
	if n := len(s.Warnings); n > 0 {
		line += fmt.Sprintf(", %s", terminal.Count(n, "warning", "warnings"))
	}
	return line, nil
}
