// Command lmosd runs a node of the mesh and is its command-line client.
//
// `lmosd run` is the node; every other command asks a running one over its HTTP API and prints what it said. See
// `lmosd help` for the commands and `lmosd help exit-codes` for what a script can rely on.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run does what the command line args (without the program's name) says, and returns the exit code. The first SIGINT or
// SIGTERM ends ctx, so that a command can finish what it began; the second ends the process. SIGHUP, which comes when the terminal
// is closed, and may come twice then, ends ctx only; under nohup it does nothing.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	ctx, hungUp := context.WithCancel(ctx)
	defer hungUp()
	if !signal.Ignored(syscall.SIGHUP) {
		hups := make(chan os.Signal, 1)
		signal.Notify(hups, syscall.SIGHUP)
		defer signal.Stop(hups)
		go func() {
			select {
			case <-hups:
				hungUp()
				stop() // SIGTERM is the second signal then
			case <-ctx.Done():
			}
		}()
	}
	return newApp(os.Environ(), stdin, stdout, stderr).run(ctx, args)
}
