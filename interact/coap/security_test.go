package coap

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	piondtls "github.com/pion/dtls/v3"
	coapdtls "github.com/plgd-dev/go-coap/v3/dtls"
	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/mux"
	coapnet "github.com/plgd-dev/go-coap/v3/net"
	"github.com/plgd-dev/go-coap/v3/net/blockwise"
	"github.com/plgd-dev/go-coap/v3/options"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
)

// dtlsAgent is an agent of go-coap with one identity and key.
func dtlsAgent(t *testing.T, identity, key string, handle func(w mux.ResponseWriter, r *mux.Message)) string {
	t.Helper()
	//lint:ignore SA1019 go-coap takes no other
	l, err := coapnet.NewDTLSListener("udp", "127.0.0.1:0", &piondtls.Config{
		PSK: func(hint []byte) ([]byte, error) {
			if string(hint) != identity {
				return nil, fmt.Errorf("nobody knows %q", hint)
			}
			return []byte(key), nil
		},
		PSKIdentityHint: []byte("the agent"),
		CipherSuites:    []piondtls.CipherSuiteID{piondtls.TLS_PSK_WITH_AES_128_CCM_8},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := coapdtls.NewServer(ticking(t), options.WithMux(mux.HandlerFunc(handle)), options.WithErrors(func(error) {}),
		options.WithBlockwise(true, blockwise.SZX1024, time.Minute))
	serve(t, func() error { return s.Serve(l) }, func() { s.Stop(); _ = l.Close() })
	return "coaps://" + l.Addr().String()
}

func secrets(t testing.TB, text string) credentials.Store {
	t.Helper()
	path := t.TempDir() + "/credentials.json"
	writeFile(t, path, text)
	c, err := credentials.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const pskTD = `"securityDefinitions": {"key": {"scheme": "psk", "identity": "from the TD"}, "nosec_sc": {"scheme": "nosec"}},
	"security": ["key"], "properties": {"p": {"forms": [{"href": "BASE/p"}]}},
	"actions": {"echo": {"input": {}, "forms": [{"href": "BASE/echo"}]}}`

func TestPreSharedKeys(t *testing.T) {
	t.Parallel()
	const key = "hunter2hunter2"
	text := big(20 << 10)
	for name, tt := range map[string]struct {
		identity, file string
		code           interact.Code
	}{
		"the right key":          {"me", `{"origin": "ORIGIN", "username": "me", "key": "` + key + `"}`, 0},
		"the identity of the TD": {"from the TD", `{"origin": "ORIGIN", "key": "` + key + `"}`, 0},
		"another key": {"me", `{"origin": "ORIGIN", "username": "me", "key": "other` + key + `"}`,
			interact.Unauthenticated},
		"another identity": {"me", `{"origin": "ORIGIN", "username": "you", "key": "` + key + `"}`,
			interact.Unauthenticated},
		"for another host": {"me", `{"origin": "coaps://127.0.0.2", "username": "me", "key": "` + key + `"}`,
			interact.Unauthenticated},
		"a token, which is not a key": {"me", `{"origin": "ORIGIN", "token": "` + key + `"}`, interact.Unauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base := dtlsAgent(t, tt.identity, key, func(w mux.ResponseWriter, r *mux.Message) {
				says(w, codes.Content, message.AppJSON, bodyOf(r.Message))
			})
			var log bytes.Buffer
			file := `{"urn:example:thing": {"key": ` + strings.ReplaceAll(tt.file, "ORIGIN", base) + `}}`
			client := newClient(t, Options{Credentials: secrets(t, file), Log: slog.New(slog.NewTextHandler(&log, nil))})
			thing := client.Thing(describe(t, base, pskTD))
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			r, err := interact.Call(ctx, thing, invoke("echo", text))
			if tt.code == 0 {
				if err != nil || string(r.Data) != text {
					t.Errorf("got %v", err)
				}
				return
			}
			// Some servers drop messages of another key without a response.
			e := interact.AsError(err)
			if e == nil || e.Code != tt.code && e.Code != interact.Unreachable || e.Started {
				t.Errorf("got %v %+v", err, e)
			}
			if all := err.Error() + e.Hint + log.String(); strings.Contains(all, "hunter2") {
				t.Errorf("the key is shown: %s", all)
			}
		})
	}
}

// TestThingsWithOtherKeysHaveOtherConnections: Things with different keys do not share a connection.
func TestThingsWithOtherKeysHaveOtherConnections(t *testing.T) {
	t.Parallel()
	base := dtlsAgent(t, "me", "hunter2hunter2", func(w mux.ResponseWriter, _ *mux.Message) {
		says(w, codes.Content,
			message.AppJSON, "1")
	})
	client := newClient(t, Options{Credentials: secrets(t,
		`{"urn:example:thing": {"key": {"origin": "`+base+`", "username": "me", "key": "hunter2hunter2"}}}`)})
	must(t, client.Thing(describe(t, base, pskTD)), read("p"))
	other := strings.Replace(pskTD, `"security": ["key"]`, `"security": ["nosec_sc"]`, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if r, err := interact.Call(ctx, client.Thing(describe(t, base, other)), read("p")); err == nil {
		t.Errorf("without a key the agent answered %s", r.Data)
	}
}

// TestCertificates: an agent without a pre-shared key needs a certificate that this machine trusts.
func TestCertificates(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, func() error {
		for {
			c, err := l.Accept()
			if err != nil {
				return nil
			}
			_, _ = c.Write([]byte("this is no TLS\r\n"))
			_ = c.Close()
		}
	}, func() { _ = l.Close() })
	thing := newClient(t, Options{}).Thing(describe(t, "coaps+tcp://"+l.Addr().String(),
		`"properties": {"p": {"forms": [{"href": "BASE/p"}]}}`))
	_, err = ask(t, thing, read("p"))
	if e := wantError(t, err, interact.Unauthenticated); e.Started || e.Remote {
		t.Errorf("%+v", e)
	}
}

// coapServer runs libcoap's example server until the test ends, on a port for UDP and TCP; the next one is for DTLS.
func coapServer(t *testing.T, args ...string) (port int) {
	t.Helper()
	path := libcoap(t, "server")
	for range 5 {
		if port = freePorts(t); port == 0 {
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		cmd := exec.CommandContext(ctx, path, append([]string{"-A", "127.0.0.1", "-p", fmt.Sprint(port), "-d", "10"}, args...)...)
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = 5 * time.Second
		if err := cmd.Start(); err != nil {
			cancel()
			t.Fatal(err)
		}
		var work sync.WaitGroup
		work.Go(func() { _ = cmd.Wait() })
		stop := func() { cancel(); work.Wait() }
		if listens(port) {
			t.Cleanup(stop)
			return port
		}
		stop() // another consumer was faster
	}
	t.Fatal("libcoap's coap-server does not start")
	return 0
}

// freePorts returns the first of two free adjacent ports; 0 if there are none.
func freePorts(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	for n := range 2 {
		u, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", port+n))
		if err != nil {
			return 0
		}
		defer u.Close()
	}
	return port
}

// listens waits until a server accepts connections.
func listens(port int) bool {
	for range 100 {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = c.Close()
			return true
		}
		time.Sleep(20 * time.Millisecond) // it is being started
	}
	return false
}

// TestLibcoapServer calls an agent that is the server of libcoap, in the clear and with a key: its text, its clock, which can be
// observed, and a resource that is made by writing.
func TestLibcoapServer(t *testing.T) {
	t.Parallel()
	port := coapServer(t, "-k", "hunter2hunter2")
	for base, sec := range map[string]string{fmt.Sprintf("coap://127.0.0.1:%d", port): "nosec_sc",
		fmt.Sprintf("coaps://127.0.0.1:%d", port+1):  "key",
		fmt.Sprintf("coap+tcp://127.0.0.1:%d", port): "nosec_sc"} {
		t.Run(base[:8], func(t *testing.T) {
			client := newClient(t, Options{Credentials: secrets(t,
				`{"urn:example:thing": {"key": {"origin": "`+base+`", "username": "me", "key": "hunter2hunter2"}}}`)})
			thing := client.Thing(describe(t, base,
				`"securityDefinitions": {"key": {"scheme": "psk"}, "nosec_sc": {"scheme": "nosec"}}, "security": ["`+sec+`"],
				"properties": {"hello": {"readOnly": true, "forms": [{"href": "BASE/", "contentType": "text/plain"}]},
				"time": {"observable": true, "forms": [{"href": "BASE/time", "contentType": "text/plain",
					"op": ["readproperty", "observeproperty"]}]},
				"data": {"forms": [{"href": "BASE/example_data", "contentType": "text/plain"}]},
				"none": {"readOnly": true, "forms": [{"href": "BASE/none"}]}}`))
			r := must(t, thing, read("hello"))
			if !strings.Contains(string(r.Data), "libcoap") || r.Media() != "text/plain" {
				t.Errorf("got %s %q", r.Media(), r.Data)
			}
			text := strings.Trim(big(5000), `"`)
			must(t, thing, write("data", `"`+text+`"`))
			if r := must(t, thing, read("data")); string(r.Data) != text {
				t.Errorf("%d bytes of %d were written and read", len(r.Data), len(text))
			}
			_, err := ask(t, thing, read("none"))
			if e := wantError(t, err, interact.NoAffordance); !e.Remote {
				t.Errorf("%v", e)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if got, err := first(ctx, thing, observe("time"), 2); err != nil || len(got) != 2 || got[0] == got[1] {
				t.Errorf("the clock said %q, %v", got, err)
			}
		})
	}
}
