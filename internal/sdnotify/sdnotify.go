// Package sdnotify reports the state of this process to a service manager with the protocol of sd_notify(3). Without a service manager,
// that is without NOTIFY_SOCKET, its functions do nothing.
package sdnotify

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// IsEnabled reports whether a service manager expects messages of this process.
func IsEnabled() bool { return os.Getenv("NOTIFY_SOCKET") != "" }

// Ready reports that the process serves, after its start or after a reload. The status is one line for people.
func Ready(status string) error { return send(daemon.SdNotifyReady, statusLine(status)) }

// Reloading reports that the process loads its configuration again. [Ready] must follow, also if that failed.
func Reloading() error {
	return send(daemon.SdNotifyReloading, strings.TrimSuffix(daemon.SdNotifyMonotonicUsec(), "\n"))
}

// Stopping reports that the process ends.
func Stopping(status string) error { return send(daemon.SdNotifyStopping, statusLine(status)) }

// Status replaces the status line.
func Status(status string) error { return send(statusLine(status)) }

func statusLine(text string) string {
	return "STATUS=" + strings.Join(strings.Fields(text), " ") // a line end would begin another assignment
}

func send(assignments ...string) error {
	_, err := daemon.SdNotify(false, strings.Join(assignments, "\n"))
	return err
}

// idle is the time between two status lines without a watchdog.
const idle = 30 * time.Second

// Watch reports the health of the process until ctx ends: its status line and, if it is healthy, that the watchdog need not act. health
// returns an error if the process is not healthy; it must end with its context. A check that takes longer than the interval counts as failed.
// Without a service manager, Watch returns at once.
func Watch(ctx context.Context, health func(context.Context) (status string, err error)) error {
	if !IsEnabled() {
		return nil
	}
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return err // of the variables; a manager that set them wrongly ends the process anyway
	}
	interval := idle
	if limit > 0 {
		interval = limit / 3 // one check may be missed
	}
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
		if err := beat(ctx, interval, limit > 0, health); err != nil {
			return err
		}
	}
}

// beat checks the health once and reports it.
func beat(ctx context.Context, most time.Duration, watchdog bool, health func(context.Context) (string, error)) error {
	within, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	status, err := health(within)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return Status("not ready: " + err.Error())
	case watchdog:
		return send(daemon.SdNotifyWatchdog, statusLine(status))
	}
	return Status(status)
}
