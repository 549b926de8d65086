package agent

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// Main is the whole program: it serves until ctx ends, and lets requests that run finish. The error is flag.ErrHelp if args ask for
// help.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("weather", flag.ContinueOnError)
	flags.SetOutput(stderr)
	listen := flags.String("listen", "127.0.0.1:8765", "`address` to serve on; port 0 takes a free one")
	file := flags.String("td", "", "`file` to write the Thing Description to, with the real address in its forms")
	if err := flags.Parse(args); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	base := "http://" + reachable(listener.Addr())
	handler, description := New(base)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second,
		// Requests that wait for an event end when the program does.
		BaseContext: func(net.Listener) context.Context { return ctx }}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	if err := ready(*file, description); err != nil {
		_ = server.Close()
		<-failed
		return err
	}
	fmt.Fprintf(stdout, "weather agent ready at %s\n", base)
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err = server.Shutdown(grace)
	<-failed
	return err
}

// reachable is the address under which a node on this machine finds the agent.
func reachable(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return addr.String()
}

// ready writes the description, if requested, atomically.
func ready(file string, description []byte) error {
	if file == "" {
		return nil
	}
	temporary, err := os.CreateTemp(filepath.Dir(file), ".weather-*")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name()) // gone already if all went well
	_, err = temporary.Write(description)
	if err := errors.Join(err, temporary.Chmod(0o644), temporary.Close()); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), file)
}
