// Command lmosd runs a node of the mesh and is its command-line client.
//
// lmosd run is the node; most other commands use the HTTP API of a running node. lmosd help lists the commands.
package main

import (
	"context"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	log.SetOutput(io.Discard) // libraries write there what lmosd logs itself
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run executes the command line args (without the name of the program) and returns the exit code. The first SIGINT or SIGTERM ends
// ctx, so that a command can finish its work; the second ends the process. SIGHUP, which a closed terminal may send twice, ends ctx only;
// under nohup it is ignored, and a service reloads its configuration ([isService]).
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	a := newApp(os.Environ(), stdin, stdout, stderr)
	ctx, hungUp := context.WithCancel(ctx)
	defer hungUp()
	if !signal.Ignored(syscall.SIGHUP) {
		hups := make(chan os.Signal, 1)
		signal.Notify(hups, syscall.SIGHUP)
		defer signal.Stop(hups)
		go func() {
			for {
				select {
				case <-hups:
				case <-ctx.Done():
					return
				}
				if !a.service.Load() {
					break
				}
				select {
				case a.hangups <- struct{}{}:
				default: // the reload that follows reads the same files
				}
			}
			hungUp()
			stop() // SIGTERM is the second signal then
		}()
	}
	return a.run(ctx, args)
}
