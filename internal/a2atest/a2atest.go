// Package a2atest makes event queues for A2A servers in tests.
package a2atest

import (
	"context"
	"sync"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv/eventqueue"
)

// Queues returns the in-memory queues of the Go library of A2A, but without readers of tasks that nothing writes. The queues of the library leak
// (a2a-go v2.4.0): a client that subscribes to a task between the end of its queue and the end of its execution makes a new queue, whose goroutine
// never ends. Such a client gets the error of a task that is not active.
func Queues() eventqueue.Manager {
	return &queues{Manager: eventqueue.NewInMemoryManager(), written: map[a2a.TaskID]bool{}}
}

type queues struct {
	eventqueue.Manager
	mu      sync.Mutex
	written map[a2a.TaskID]bool // tasks with a writer
}

func (q *queues) CreateReader(ctx context.Context, task a2a.TaskID) (eventqueue.Reader, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.written[task] {
		return nil, eventqueue.ErrQueueClosed
	}
	return q.Manager.CreateReader(ctx, task)
}

func (q *queues) CreateWriter(ctx context.Context, task a2a.TaskID) (eventqueue.Writer, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.written[task] = true
	return q.Manager.CreateWriter(ctx, task)
}

func (q *queues) Destroy(ctx context.Context, task a2a.TaskID) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.written, task)
	return q.Manager.Destroy(ctx, task)
}
