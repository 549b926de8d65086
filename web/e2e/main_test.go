// Package e2e tests the web console in Chromium, against a testnet of real nodes.
//
// It is a module of its own, so that the program does not depend on the driver of the browser. CI runs it; without Chromium it is skipped.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/lmosd/lmosd/internal/testprogram"
	"github.com/lmosd/lmosd/testnet"
)

// The parts that all tests share: the program, a browser, and a testnet whose nodes no test stops.
var (
	binary  string
	browser context.Context
	mesh    *testnet.Net
	shop    *agents
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	path, err := testprogram.Find("chromium", "chromium-browser", "google-chrome")
	if err != nil {
		if testprogram.CI() {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println("skipped:", err)
		return 0
	}
	dir, err := os.MkdirTemp("", "lmosd-e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	binary = filepath.Join(dir, "lmosd")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/lmosd")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	if mesh, err = startMesh(ctx, dir, 5); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer mesh.Close()
	shop = startAgents()
	defer shop.close()
	if err := shop.publish(ctx, mesh.Members[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("host-resolver-rules", "MAP "+insecureName+" 127.0.0.1"), chromedp.WSURLReadTimeout(time.Minute))
	alloc, end := chromedp.NewExecAllocator(context.Background(), options...)
	defer end()
	var closeBrowser context.CancelFunc
	browser, closeBrowser = chromedp.NewContext(alloc)
	defer closeBrowser()
	if err := chromedp.Run(browser); err != nil {
		fmt.Fprintln(os.Stderr, "Chromium does not start:", err)
		return 1
	}
	return m.Run()
}

// insecureName is a name of this machine for the browser. A page of plain HTTP below a name is no secure context: it has no locks and no clipboard.
const insecureName = "node.test"

// startMesh starts nodes below dir that know each other.
func startMesh(ctx context.Context, dir string, n int) (*testnet.Net, error) {
	net, err := testnet.Processes(ctx, n, testnet.Options{Network: fmt.Sprintf("e2e-%d-%d", os.Getpid(), n), Seed: time.Now().UnixNano(),
		Dir: filepath.Join(dir, fmt.Sprintf("mesh-%d", n)), Binary: binary})
	if err != nil {
		return nil, err
	}
	return net, net.Settle(ctx)
}
