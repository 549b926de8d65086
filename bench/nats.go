package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// startNATS runs a server and a responder as processes and connects over TCP. All callers share one connection, as the client library
// intends.
func startNATS(ctx context.Context) (dialer, func(), error) {
	url, stopServer, err := child(ctx, "nats-server")
	if err != nil {
		return nil, nil, err
	}
	_, stopResponder, err := child(ctx, "nats-responder="+url)
	if err != nil {
		stopServer()
		return nil, nil, err
	}
	conn, err := nats.Connect(url)
	if err != nil {
		stopResponder()
		stopServer()
		return nil, nil, err
	}
	payload := bytes.Repeat([]byte{'x'}, payloadSize)
	dial := func() (caller, error) {
		return caller{close: func() {}, call: func(context.Context) error {
			m, err := conn.Request("echo", payload, 5*time.Second)
			if err == nil && len(m.Data) != payloadSize {
				err = fmt.Errorf("received %d bytes", len(m.Data))
			}
			return err
		}}, nil
	}
	return dial, func() { conn.Close(); stopResponder(); stopServer() }, nil
}

func serveNATS(ctx context.Context, _ string) error {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true})
	if err != nil {
		return err
	}
	go s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(10 * time.Second) {
		return errors.New("the NATS server did not start")
	}
	fmt.Println(s.ClientURL())
	<-ctx.Done()
	return nil
}

func serveResponder(ctx context.Context, url string) error {
	conn, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Subscribe("echo", func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return err
	}
	fmt.Println("ready")
	<-ctx.Done()
	return nil
}
