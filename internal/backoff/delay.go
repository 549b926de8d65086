// Package delay waits, and keeps nobody who leaves.
package backoff

import (
	"context"
	"time"
)

// For returns after d, or with the error of ctx as soon as that ends. A d of zero or less is no delay.
func For(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
