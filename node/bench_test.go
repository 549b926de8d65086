package node

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy"
)

const echoTD = `{"@context":["https://www.w3.org/2019/wot/td/v1","https://www.w3.org/2022/wot/td/v1.1"],"@type":"lmos:Tool","title":"echo",
"securityDefinitions":{"nosec_sc":{"scheme":"nosec"}},"security":["nosec_sc"],
"actions":{"echo":{"synchronous":true,"input":{"type":"string"},"output":{"type":"string"},
"forms":[{"href":"http://127.0.0.1:1/echo","op":["invokeaction"],"contentType":"application/json"}]}}}`

// echo is an agent in the process of its node.
var echo = interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
	r := m.Reply(interact.ActionStatus, m.ContentType, m.Data)
	r.Status = interact.StatusCompleted
	return r, nil
})

// BenchmarkCall is one call from a node to another in the same process, over TCP, through the whole chain at both.
func BenchmarkCall(b *testing.B) {
	host, caller := benchNode(b), benchNode(b)
	p, err := host.Offer(b.Context(), []byte(echoTD), echo)
	if err != nil {
		b.Fatal(err)
	}
	if err := caller.network.peers.Connect(b.Context(), host.Addrs()[0]); err != nil {
		b.Fatal(err)
	}
	data := []byte(`"` + strings.Repeat("x", 254) + `"`)
	call := func(ctx context.Context) error {
		_, err := interact.Call(ctx, asConsumer(caller), &interact.Message{Type: interact.InvokeAction, Thing: p.Ref, Name: "echo", Data: data})
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); call(b.Context()) != nil; {
		if time.Now().After(deadline) {
			b.Fatal("the caller does not know the agent")
		}
	}
	b.Run("1", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := call(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("64", func(b *testing.B) {
		b.ReportAllocs()
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := call(b.Context()); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

func benchNode(b *testing.B) *Node {
	b.Helper()
	n, err := New(Options{Network: "bench", Profile: "test", Loopback: true, Listen: []string{"/ip4/127.0.0.1/tcp/0"}, ListenExplicit: true,
		Policy: anyoneCalls(policy.Rules{PerPeer: 1e9, Burst: 1e9, Concurrency: 1024})})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
		if err := n.Close(); err != nil {
			b.Error(err)
		}
	})
	return n
}
