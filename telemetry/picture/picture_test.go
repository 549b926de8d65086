package picture

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/fileexporter"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

var update = flag.Bool("update", false, "draw the picture of the documentation again")

const picture = "../../docs/images/trace.svg"

// TestTraceOfACallOverTwoNodes calls an agent of one node at another one. Both send their spans to a collector, from whose file the picture is drawn; the
// picture of the documentation shows the same spans. Their times differ.
func TestTraceOfACallOverTwoNodes(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "lmosd")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./cmd/lmosd")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	spans := filepath.Join(dir, "spans.json")
	endpoint, stop := startCollector(t, dir, spans)
	m := &mesh{t: t, binary: binary, dir: dir}
	host := m.node("host", "--telemetry.traces.endpoint", endpoint)
	consumer := m.node("consumer", "--telemetry.traces.endpoint", endpoint, "--telemetry.traces.percent", "100", "--mesh.bootstrap", host.P2P[0])
	agent := m.start("expose", "exec:cat", "--name", "echo", "--data-dir", host.dir)
	eventually(t, "the consumer finds the agent", func() bool {
		return m.command("find", "--exit-status", "echo", "--data-dir", consumer.dir).Run() == nil
	})
	out, err := m.command("call", "echo", "run", "text=hello", "--data-dir", consumer.dir).CombinedOutput()
	if err != nil {
		t.Fatalf("call: %v\n%s", err, out)
	}
	end(t, agent)
	end(t, consumer.cmd) // sends the last spans
	end(t, host.cmd)
	stop()

	f, err := os.Open(spans)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	roots, err := Read(f)
	if err != nil {
		t.Fatal(err)
	}
	roots = slices.DeleteFunc(roots, func(s *Span) bool { return s.Name != "lmos.call invokeaction" })
	if len(roots) != 1 {
		t.Fatalf("got %d traces of calls, want 1", len(roots))
	}
	svg := Draw(roots[0])
	if *update {
		if err := os.WriteFile(picture, svg, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	drawn, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := Structure(roots[0]), StructureOf(drawn); !slices.Equal(got, want) || !slices.Equal(got, StructureOf(svg)) {
		t.Errorf("the spans are\n%s\nthe picture has\n%s\nDraw it again: go test -update", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if nodes := strings.Join(Structure(roots[0]), "\n"); !strings.Contains(nodes, "node A") || !strings.Contains(nodes, "node B") {
		t.Errorf("the trace is not of two nodes:\n%s", nodes)
	}
}

func TestReadRejectsWhatIsNoTrace(t *testing.T) {
	for _, text := range []string{"{", `{"resourceSpans":[{"scopeSpans":[{"spans":[{"startTimeUnixNano":"soon"}]}]}]}`} {
		if _, err := Read(strings.NewReader(text)); err == nil {
			t.Errorf("%s: no error", text)
		}
	}
}

// startCollector runs a collector that writes the spans to a file. It returns the endpoint for nodes.
func startCollector(t *testing.T, dir, spans string) (endpoint string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String() // the receiver does not say which port it has
	l.Close()
	config := filepath.Join(dir, "collector.yaml")
	text := fmt.Sprintf(`receivers: {otlp: {protocols: {http: {endpoint: %q}}}}
exporters: {file: {path: %q}}
service:
  telemetry: {logs: {level: error}, metrics: {level: none}}
  pipelines: {traces: {receivers: [otlp], exporters: [file]}}
`, addr, spans)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	collector, err := otelcol.NewCollector(otelcol.CollectorSettings{
		BuildInfo:               component.BuildInfo{Command: "collector", Version: "0"},
		Factories:               factories,
		DisableGracefulShutdown: true,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			URIs: []string{"file:" + config}, ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- collector.Run(context.Background()) }()
	eventually(t, "the collector runs", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("the collector ended: %v", err)
		default:
		}
		return collector.GetState() == otelcol.StateRunning
	})
	return "http://" + addr, func() {
		collector.Shutdown()
		if err := <-ended; err != nil {
			t.Errorf("the collector: %v", err)
		}
	}
}

func factories() (f otelcol.Factories, err error) {
	f.Telemetry = otelconftelemetry.NewFactory()
	if f.Receivers, err = otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory()); err != nil {
		return f, err
	}
	f.Exporters, err = otelcol.MakeFactoryMap[exporter.Factory](fileexporter.NewFactory())
	return f, err
}

// A mesh starts programs on loopback.
type mesh struct {
	t           *testing.T
	binary, dir string
}

func (m *mesh) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(m.t.Context(), m.binary, args...)
	cmd.Env = []string{"HOME=" + m.dir, "PATH=" + os.Getenv("PATH")}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd
}

// start runs a command until the end of the test, or of end.
func (m *mesh) start(args ...string) *exec.Cmd {
	m.t.Helper()
	cmd := m.command(args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if m.t.Failed() {
			m.t.Logf("%s:\n%s", strings.Join(args, " "), out.String())
		}
	})
	return cmd
}

type node struct {
	cmd *exec.Cmd
	dir string
	P2P []string `json:"p2p"`
}

func (m *mesh) node(name string, args ...string) *node {
	m.t.Helper()
	n := &node{dir: filepath.Join(m.dir, name)}
	ready := n.dir + ".ready"
	n.cmd = m.start(append([]string{"run", "--profile", "test", "--data-dir", n.dir, "--ready-file", ready}, args...)...)
	eventually(m.t, name+" serves", func() bool {
		b, err := os.ReadFile(ready)
		return err == nil && json.Unmarshal(b, n) == nil
	})
	return n
}

// end stops a program and waits for its end.
func end(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timeout: %s", what)
		}
	}
}
