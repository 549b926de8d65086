package main

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	libp2pquic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
)

const echoProtocol = "/bench/echo/1"

// listenOn is the address of a transport.
func listenOn(kind string) string {
	if kind == "quic" {
		return "/ip4/127.0.0.1/udp/0/quic-v1"
	}
	return "/ip4/127.0.0.1/tcp/0"
}

func echoHost(kind string) (host.Host, error) {
	return libp2p.New(libp2p.ListenAddrStrings(listenOn(kind)), libp2p.DisableMetrics(), libp2p.DisableRelay(),
		libp2p.Security(libp2ptls.ID, libp2ptls.New), libp2p.ResourceManager(&network.NullResourceManager{}),
		libp2p.Transport(libp2pquic.NewTransport), libp2p.Transport(tcp.NewTCPTransport))
}

// startEcho is the baseline of libp2p: a persistent stream per caller, fixed-size messages, no framing.
func startEcho(ctx context.Context, kind string) (dialer, func(), error) {
	h, to, stop, err := dialEcho(ctx, kind)
	if err != nil {
		return nil, nil, err
	}
	return func() (caller, error) { return echoCaller(ctx, h, to) }, stop, nil
}

// dialEcho starts a bare libp2p host in a process and returns one here that is connected to it.
func dialEcho(ctx context.Context, kind string) (h host.Host, to peer.ID, stop func(), err error) {
	addr, stopEcho, err := child(ctx, "echo="+kind)
	if err != nil {
		return nil, "", nil, err
	}
	h, err = echoHost(kind)
	if err != nil {
		stopEcho()
		return nil, "", nil, err
	}
	stop = func() { h.Close(); stopEcho() }
	info, err := peer.AddrInfoFromString(addr)
	if err == nil {
		err = h.Connect(ctx, *info)
	}
	if err != nil {
		stop()
		return nil, "", nil, err
	}
	return h, info.ID, stop, nil
}

func echoCaller(ctx context.Context, h host.Host, to peer.ID) (caller, error) {
	s, err := h.NewStream(ctx, to, echoProtocol)
	if err != nil {
		return caller{}, err
	}
	out, in := bytes.Repeat([]byte{'x'}, payloadSize), make([]byte, payloadSize)
	call := func(context.Context) error {
		if _, err := s.Write(out); err != nil {
			return err
		}
		_, err := io.ReadFull(s, in)
		return err
	}
	return caller{call: call, close: func() { _ = s.Close() }}, nil
}

func serveEcho(ctx context.Context, kind string) error {
	h, err := echoHost(kind)
	if err != nil {
		return err
	}
	defer h.Close()
	h.SetStreamHandler(bulkProtocol, swallow)
	h.SetStreamHandler(echoProtocol, func(s network.Stream) {
		defer s.Close()
		b := make([]byte, payloadSize)
		for {
			if _, err := io.ReadFull(s, b); err != nil {
				return
			}
			if _, err := s.Write(b); err != nil {
				return
			}
		}
	})
	fmt.Printf("%s/p2p/%s\n", h.Addrs()[0], h.ID())
	<-ctx.Done()
	return nil
}
