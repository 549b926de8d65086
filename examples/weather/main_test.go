package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lmosd/lmosd/examples/weather/agent"
	"github.com/lmosd/lmosd/td"
)

// asProgram makes the test binary be the program.
const asProgram = "WEATHER_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// start runs the program as a process of its own, and returns its base address and how it ends on SIGTERM.
func start(t *testing.T, args ...string) (base string, end func() error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	t.Cleanup(func() {
		if !ended {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("no line when ready: %v", err)
	}
	base, ok := strings.CutPrefix(strings.TrimSpace(line), "weather agent ready at ")
	if !ok {
		t.Fatalf("got %q when ready", line)
	}
	return base, func() error {
		ended = true
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		return cmd.Wait()
	}
}

func TestProgramServesItsDescription(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "weather.td.json")
	base, end := start(t, "-listen", "127.0.0.1:0", "-td", file)

	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("the description is not there when the program is ready: %v", err)
	}
	thing, err := td.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	if len(thing.Warnings) > 0 {
		t.Errorf("warnings: %v", thing.Warnings)
	}
	if served := get(t, base+"/.well-known/wot", ""); served != string(raw) {
		t.Error("the served description is not the written one")
	}
	for name, form := range forms(thing) {
		checkForm(t, base, name, form)
	}
	if err := end(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
}

// forms lists every form of a thing by affordance and number.
func forms(thing *td.Thing) map[string]td.Form {
	all := map[string]td.Form{}
	add := func(name string, list []td.Form) {
		for i, f := range list {
			all[name+"/"+string(rune('0'+i))] = f
		}
	}
	add("thing", thing.Forms)
	for name, p := range thing.Properties {
		add(name, p.Forms)
	}
	for name, a := range thing.Actions {
		add(name, a.Forms)
	}
	for name, e := range thing.Events {
		add(name, e.Forms)
	}
	return all
}

// checkForm asks a form for each of its operations.
func checkForm(t *testing.T, base, name string, f td.Form) {
	t.Helper()
	if !strings.HasPrefix(f.Href, base+"/") {
		t.Errorf("%s: href %s is not at %s", name, f.Href, base)
	}
	for _, op := range f.Ops {
		switch op {
		case "readproperty", "readallproperties":
			if body := get(t, f.Href, f.ContentType); !json.Valid([]byte(body)) {
				t.Errorf("%s: %s gives no JSON: %s", name, op, body)
			}
		case "writeproperty":
			if status, _ := send(t, http.MethodPut, f.Href, `"celsius"`); status != http.StatusNoContent {
				t.Errorf("%s: %s gives %d", name, op, status)
			}
		case "invokeaction":
			checkAction(t, name, f)
		case "subscribeevent":
			checkEvent(t, base, name, f)
		case "unsubscribeevent": // to close the connection
		default:
			t.Errorf("%s: nobody checks %s", name, op)
		}
	}
}

func checkAction(t *testing.T, name string, f td.Form) {
	t.Helper()
	switch name {
	case "getWeather/0":
		status, body := send(t, http.MethodPost, f.Href, `{"question":"Rain in Bonn?","interactionMode":"text"}`)
		if want := "\"Light rain, 12 °C, until 16:00.\"\n"; status != 200 || body != want {
			t.Errorf("%s: got %d %q, want 200 %q", name, status, body, want)
		}
	case "giveFeedback/0":
		if status, _ := send(t, http.MethodPost, f.Href, `{"rating":4}`); status != http.StatusNoContent {
			t.Errorf("%s: got %d", name, status)
		}
	default:
		t.Errorf("nobody checks the action %s", name)
	}
}

// checkEvent subscribes, and gives feedback until the event is there: a subscription that is being made may miss one.
func checkEvent(t *testing.T, base, name string, f td.Form) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	accept := map[string]string{"longpoll": "application/json", "sse": "text/event-stream"}[f.Subprotocol]
	got := make(chan string, 1)
	go func() { got <- firstEvent(ctx, f.Href, accept) }()
	for {
		send(t, http.MethodPost, base+"/actions/giveFeedback", `{"rating":5,"comment":"good"}`)
		select {
		case event := <-got:
			if !strings.Contains(event, `{"rating":5,"comment":"good"}`) {
				t.Errorf("%s: got %q", name, event)
			}
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// firstEvent returns the answer to a long poll, or the first event of a stream.
func firstEvent(ctx context.Context, href, accept string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, href, nil)
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	var lines []string
	for s := bufio.NewScanner(resp.Body); s.Scan() && s.Text() != ""; {
		lines = append(lines, s.Text())
	}
	return strings.Join(lines, "\n")
}

func get(t *testing.T, url, accept string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	status, body := do(t, req)
	if status != http.StatusOK {
		t.Errorf("GET %s: %d", url, status)
	}
	return body
}

func send(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	return do(t, req)
}

func do(t *testing.T, req *http.Request) (int, string) {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestProgramFailsWithAReason(t *testing.T) {
	t.Parallel()
	taken, end := start(t, "-listen", "127.0.0.1:0")
	for name, args := range map[string][]string{
		"address in use":      {"-listen", strings.TrimPrefix(taken, "http://")},
		"unknown flag":        {"-port", "1"},
		"no folder for -td":   {"-listen", "127.0.0.1:0", "-td", filepath.Join(t.TempDir(), "none", "weather.td.json")},
		"address is nonsense": {"-listen", "nowhere"},
	} {
		if err := agent.Main(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

func TestSIGTERMEndsAStream(t *testing.T) {
	t.Parallel()
	base, end := start(t, "-listen", "127.0.0.1:0")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/events/userFeedbackReceived", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := end(); err != nil {
		t.Errorf("SIGTERM with an open stream: %v", err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Errorf("the stream did not end cleanly: %v", err)
	}
}
