package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// streams compares a stream of 64 KiB chunks, up (request stream) and down (response stream), with a bare libp2p stream with writes of that
// size.
func streams(ctx context.Context, p plan) error {
	p.table("transport | libp2p stream, bare | lmosd, up | / bare | lmosd, down | / bare")
	for _, k := range kinds {
		bare, up, down, err := threeWays(ctx, k.kind, p)
		if err != nil {
			return fmt.Errorf("over %s: %w", k.name, err)
		}
		p.row("%s | %.0f MB/s | %.0f MB/s | %.2f | %.0f MB/s | %.2f", k.name, bare, up, up/bare, down, down/bare)
		p.atLeast("up over "+k.name+" / bare", up/bare, 0.6, "")
		p.atLeast("down over "+k.name+" / bare", down/bare, 0.6, "")
	}
	return nil
}

// threeWays returns the medians in MB/s of alternating measurements.
func threeWays(ctx context.Context, kind string, p plan) (bare, up, down float64, err error) {
	b, err := newBulk(ctx, kind)
	if err != nil {
		return 0, 0, 0, err
	}
	defer b.stop()
	l, err := newLink(ctx, kind)
	if err != nil {
		return 0, 0, 0, err
	}
	defer l.stop()
	ways := []struct {
		name string
		run  func(context.Context, time.Duration) (int64, error)
	}{{"bare", b.write}, {"lmosd, up", l.upload}, {"lmosd, down", l.download}}
	rates := make([][]float64, len(ways))
	for round := range p.rounds {
		for i, w := range ways {
			began := time.Now()
			n, err := w.run(ctx, p.length)
			if err != nil {
				return 0, 0, 0, fmt.Errorf("%s: %w", w.name, err)
			}
			rate := float64(n) / 1e6 / time.Since(began).Seconds()
			rates[i] = append(rates[i], rate)
			progress("round %d  %-4s %-12s %6.0f MB/s", round+1, kind, w.name, rate)
		}
	}
	return medianOf(rates[0]), medianOf(rates[1]), medianOf(rates[2]), nil
}

// upload sends chunks for a time and returns the number of bytes that the agent read.
func (l *link) upload(ctx context.Context, length time.Duration) (int64, error) {
	chunk, deadline := make([]byte, chunkSize), time.Now().Add(length)
	m := &interact.Message{From: did.Consumer(did.Process, ""), Type: interact.InvokeAction, Thing: l.ref, Name: "upload", ContentType: "application/octet-stream"}
	m.Chunks = func(yield func([]byte, error) bool) {
		for time.Now().Before(deadline) && yield(chunk, nil) {
		}
	}
	r, err := interact.Call(ctx, l.node.Mesh(), m)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(r.Data), 10, 64)
}

// download reads chunks for a time and returns their number of bytes.
func (l *link) download(ctx context.Context, length time.Duration) (n int64, err error) {
	deadline := time.Now().Add(length)
	m := &interact.Message{From: did.Consumer(did.Process, ""), Type: interact.InvokeAction, Thing: l.ref, Name: "download", Accept: "application/octet-stream"}
	for r, err := range l.node.Mesh().Do(ctx, m) {
		if err != nil {
			return n, err
		}
		if n += int64(len(r.Data)); time.Now().After(deadline) {
			break
		}
	}
	return n, nil
}

const bulkProtocol = "/bench/bulk/1"

// A bulk is a libp2p host that writes to another.
type bulk struct {
	host host.Host
	to   peer.ID
	stop func()
}

func newBulk(ctx context.Context, kind string) (*bulk, error) {
	h, to, stop, err := dialEcho(ctx, kind)
	return &bulk{h, to, stop}, err
}

// write writes for a time, and returns the number of bytes that the far end read.
func (b *bulk) write(ctx context.Context, length time.Duration) (n int64, err error) {
	s, err := b.host.NewStream(ctx, b.to, bulkProtocol)
	if err != nil {
		return 0, err
	}
	defer func() { _ = s.Reset() }()
	chunk := make([]byte, chunkSize)
	for deadline := time.Now().Add(length); time.Now().Before(deadline); n += chunkSize {
		if _, err := s.Write(chunk); err != nil {
			return n, err
		}
	}
	if err := s.CloseWrite(); err != nil {
		return n, err
	}
	_, err = io.Copy(io.Discard, s) // the far end closes when it has read all
	return n, err
}

// swallow reads a stream to its end.
func swallow(s network.Stream) {
	b := make([]byte, chunkSize)
	for {
		if _, err := s.Read(b); err != nil {
			_ = s.Close()
			return
		}
	}
}
