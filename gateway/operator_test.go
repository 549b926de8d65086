package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/audit"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/telemetry/recentlog"
)

// logging returns options with a log that keeps what the gateway logs.
func logging() (Options, *recentlog.Log, *slog.Logger) {
	l := recentlog.New(recentlog.Options{Home: "github.com/lmosd/lmosd/"})
	log := slog.New(l.Handler(slog.DiscardHandler))
	return Options{Log: log, Operation: Operation{Logs: l}}, l, log
}

func scopesOf(t *testing.T, names ...string) (all []tokens.Scope) {
	t.Helper()
	for _, name := range names {
		one, err := tokens.ParseScope(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	return all
}

// operatorPaths are the routes for operators.
var operatorPaths = []exchange{
	{method: "GET", path: "/v1/config"}, {method: "POST", path: "/v1/config/reload"}, {method: "GET", path: "/v1/logs"}, {method: "POST", path: "/v1/doctor"}, {method: "GET", path: "/v1/bridges"},
	{method: "GET", path: "/v1/discovered"}, {method: "GET", path: "/v1/audit"}, {method: "GET", path: "/v1/trust"},
	{method: "PUT", path: "/v1/logs/gateway", body: `{"level":"debug"}`}, {method: "DELETE", path: "/v1/logs/gateway"},
}

// Only callers with the right to manage the node see or change its operation.
func TestOperatorRights(t *testing.T) {
	t.Parallel()
	store, err := tokens.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	secret, _, err := store.Create(tokens.Token{Name: "ci", Scopes: scopesOf(t, "find", "call"), Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	o, l, _ := logging()
	o.Tokens = store
	r := start(t, o)
	for _, x := range operatorPaths {
		x.header, x.status, x.code = map[string]string{"Content-Type": interact.JSON}, 401, "LMOS-1401"
		r.check(t, x)
		x.header, x.status, x.code = merge(x.header, "Authorization", "Bearer "+secret), 403, "LMOS-1403"
		r.check(t, x)
		x.header, x.status, x.code = map[string]string{"Content-Type": interact.JSON, "Origin": "http://evil.example"}, 401, ""
		if x.method != "GET" {
			x.status = 403
		}
		r.check(t, x)
	}
	if got := l.Levels(); len(got) != 1 {
		t.Errorf("levels %v", got)
	}
}

// A part that the node does not have is a 404, and every route has bad parameters.
func TestOperatorParameters(t *testing.T) {
	t.Parallel()
	bare := start(t, Options{})
	for _, path := range []string{"/v1/config", "/v1/logs", "/v1/audit", "/v1/trust"} {
		bare.check(t, exchange{path: path, header: asAdmin, status: 404})
	}
	o, _, _ := logging()
	o.Config = func() []api.ConfigItem { return nil }
	o.AuditDir = t.TempDir()
	r := start(t, o)
	for path, want := range map[string]int{
		"/v1/config?x=1": 400, "/v1/bridges?x=1": 400, "/v1/discovered?x=1": 400, "/v1/trust?x=1": 404,
		"/v1/logs?limit=0": 400, "/v1/logs?limit=2001": 400, "/v1/logs?level=loud": 400, "/v1/logs?logger=a//b": 400, "/v1/logs?logger=*": 400,
		"/v1/logs?cursor=x": 400, "/v1/logs?cursor=0": 400, "/v1/logs?since=1": 400, "/v1/logs?limit=1&limit=2": 400,
		"/v1/audit?limit=1001": 400, "/v1/audit?since=yesterday": 400, "/v1/audit?since=-1h": 400, "/v1/audit?decision=maybe": 400, "/v1/audit?code=9": 400,
		"/v1/audit?since=24h&who=a&thing=b&code=1403&decision=deny": 200, "/v1/audit?since=2026-11-20T10:00:00Z": 200,
	} {
		r.check(t, exchange{path: path, header: asAdmin, status: want})
	}
	asJSON := merge(asAdmin, "Content-Type", interact.JSON)
	for _, x := range []exchange{
		{method: "POST", path: "/v1/doctor?x=1", header: asAdmin, status: 400},
		{method: "GET", path: "/v1/doctor", header: asAdmin, status: 405, want: map[string]string{"Allow": "POST"}},
		{method: "GET", path: "/v1/logs/gateway", header: asAdmin, status: 405, want: map[string]string{"Allow": "DELETE, PUT"}},
		{method: "PUT", path: "/v1/logs/gateway", header: asJSON, body: `{"level":"loud"}`, status: 400},
		{method: "PUT", path: "/v1/logs/gateway", header: asJSON, body: `{"lvl":"debug"}`, status: 400},
		{method: "PUT", path: "/v1/logs/gateway", header: asAdmin, body: `{"level":"debug"}`, status: 415},
		{method: "PUT", path: "/v1/logs/a b", header: asJSON, body: `{"level":"debug"}`, status: 400},
		{method: "PUT", path: "/v1/logs/" + strings.Repeat("a", 129), header: asJSON, body: `{"level":"debug"}`, status: 400},
		{method: "PUT", path: "/v1/logs/gateway?x=1", header: asJSON, body: `{"level":"debug"}`, status: 400},
		{method: "DELETE", path: "/v1/logs/*", header: asAdmin, status: 405},
		{method: "HEAD", path: "/v1/config", header: asAdmin, status: 200},
		{method: "HEAD", path: "/v1/logs", header: merge(asAdmin, "Accept", "text/event-stream"), status: 200, want: map[string]string{"Content-Type": interact.JSON}},
		{method: "HEAD", path: "/v1/bridges", header: asAdmin, status: 200},
		{method: "HEAD", path: "/v1/discovered", header: asAdmin, status: 200},
		{method: "HEAD", path: "/v1/audit", header: asAdmin, status: 200},
	} {
		x.path = strings.ReplaceAll(x.path, " ", "%20")
		r.check(t, x)
	}
}

// A level acts at once, and is in the list.
func TestLogLevels(t *testing.T) {
	t.Parallel()
	o, _, log := logging()
	r := start(t, o)
	c := dial(t, r.url, token)
	log.Debug("before")
	now, err := c.SetLogLevel(t.Context(), "gateway", "debug")
	if err != nil || now.Kind != "LogLevels" || now.Levels["gateway"] != "debug" || now.Levels["*"] != "info" {
		t.Fatalf("%+v, %v", now, err)
	}
	log.Debug("during", "password", "hunter2", "url", "https://u:hunter2@h.example/")
	list, err := c.Logs(t.Context(), api.LogQuery{Logger: "gateway"})
	if err != nil {
		t.Fatal(err)
	}
	last := list.Items[len(list.Items)-1]
	if last.Text != "during" || last.Level != "debug" || last.Logger != "gateway" || last.Fields["password"] != recentlog.Redacted ||
		list.Levels["gateway"] != "debug" || list.Latest != last.Seq || list.Loggers[0] != "gateway" {
		t.Errorf("%+v", list)
	}
	if _, body := r.do(t, exchange{path: "/v1/logs", header: asAdmin}); strings.Contains(body, "hunter2") || strings.Contains(body, "before") {
		t.Error(body)
	}
	if _, err := c.SetLogLevel(t.Context(), "gateway", ""); err != nil {
		t.Fatal(err)
	}
	log.Debug("after")
	if _, err := c.SetLogLevel(t.Context(), "*", "error"); err != nil {
		t.Fatal(err)
	}
	log.Warn("hidden")
	list, err = c.Logs(t.Context(), api.LogQuery{Level: "warn", Limit: 1})
	if err != nil || len(list.Items) != 1 || list.Next == "" || list.Items[0].Text != "log level removed" || list.Levels["*"] != "error" {
		t.Fatalf("%+v, %v", list, err)
	}
	older, err := c.Logs(t.Context(), api.LogQuery{Level: "warn", Limit: 1, Cursor: list.Next})
	if err != nil || len(older.Items) != 1 || older.Items[0].Text != "log level changed until the node ends" || older.Next != "" {
		t.Errorf("%+v, %v", older, err)
	}
}

// follow reads the texts of a stream of log records until it ends.
func followLogs(ctx context.Context, c *api.Client, texts chan<- string) error {
	defer close(texts)
	for e, err := range c.FollowLogs(ctx, api.LogQuery{Limit: 1, Level: "info"}) {
		switch {
		case err != nil:
			return err
		case e.Gap != nil:
			texts <- "gap"
		default:
			texts <- e.Record.Text
		}
	}
	return nil
}

// A stream begins with the newest records and ends with the rights of its reader, and when the node drains.
func TestLogStream(t *testing.T) {
	t.Parallel()
	store, err := tokens.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	secret, _, err := store.Create(tokens.Token{Name: "ci", Scopes: scopesOf(t, "manage"), Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	o, _, log := logging()
	o.Tokens = store
	r := start(t, o)
	log.Info("one")
	log.Info("two")
	read := func(c *api.Client) (chan string, chan error) {
		texts, done := make(chan string, 100), make(chan error, 1)
		go func() { done <- followLogs(t.Context(), c, texts) }()
		if got := <-texts; got != "two" {
			t.Errorf("begins with %q", got)
		}
		log.Debug("hidden")
		log.Info("three")
		if got := <-texts; got != "three" {
			t.Errorf("continues with %q", got)
		}
		log.Info("two")
		if got := <-texts; got != "two" {
			t.Errorf("continues with %q", got)
		}
		return texts, done
	}
	_, byToken := read(dial(t, r.url, secret))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/v1/logs?limit=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	bySocket, err := r.unix.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer bySocket.Body.Close()
	if err := store.Revoke("ci"); err != nil {
		t.Fatal(err)
	}
	if err := <-byToken; interact.AsError(err).Code != interact.TokenRejected {
		t.Errorf("after the revocation: %v", err)
	}
	r.stop()
	if text, err := io.ReadAll(bySocket.Body); err != nil || !strings.Contains(string(text), interact.ShuttingDown.String()) {
		t.Errorf("at the drain: %s, %v", text, err)
	}
}

// The number of streams is bounded.
func TestLogStreamLimit(t *testing.T) {
	t.Parallel()
	o, _, _ := logging()
	r := start(t, o, func(g *Gateway) { g.logStreams.Store(maxLogStreams) })
	r.check(t, exchange{path: "/v1/logs", header: merge(asAdmin, "Accept", "text/event-stream"), status: 503})
	if n := r.logStreams.Load(); n != maxLogStreams {
		t.Errorf("%d streams", n)
	}
}

// A gap and the number of an earlier event are as documented.
func TestLogGap(t *testing.T) {
	t.Parallel()
	o, l, log := logging()
	r := start(t, o)
	for range recentlog.MaxRecords + 10 {
		log.Info("x")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+"/v1/logs", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Accept": {"text/event-stream"}, "Authorization": {"Bearer " + token}, "Last-Event-Id": {"5"}}
	resp, err := r.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var buf [600]byte
	n := 0
	for n < len(buf) {
		k, err := resp.Body.Read(buf[n:])
		if n += k; err != nil {
			break
		}
	}
	first := l.Newest(recentlog.MaxRecords, func(*recentlog.Record) bool { return true })[0]
	want, _ := json.Marshal(api.LogGap{Kind: "gap", From: 6, To: first.Seq - 1})
	if got := string(buf[:n]); !strings.Contains(got, "event: gap\n") || !strings.Contains(got, "data: "+string(want)+"\n") || !strings.Contains(got, "event: log\n") {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A countingBridge answers with the status of its path, and may be broken.
type countingBridge struct{ broken error }

func (countingBridge) Paths() []string { return []string{"/.well-known/x.json", "/proto/{status}"} }
func (countingBridge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("status") == "bad" {
		w.WriteHeader(http.StatusBadGateway)
	}
}
func (b countingBridge) Check(context.Context) error { return b.broken }

func TestBridgesAreCounted(t *testing.T) {
	t.Parallel()
	r := start(t, Options{Bridges: []Bridge{countingBridge{errors.New("its server is gone")}}})
	r.check(t, exchange{path: "/proto/good", status: 200})
	r.check(t, exchange{path: "/proto/good", status: 200})
	if resp, _ := r.do(t, exchange{path: "/proto/bad"}); resp.StatusCode != http.StatusBadGateway {
		t.Error(resp.Status)
	}
	before := time.Now()
	list, err := dial(t, r.url, token).Bridges(t.Context())
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	b := list.Items[0]
	if b.Name != "proto" || b.Requests != 3 || b.Errors != 1 || b.Last.IsZero() || b.Last.After(before) || b.Status != api.CheckFail || b.Text != "its server is gone" {
		t.Errorf("%+v", b)
	}
}

// auditLog writes a log with a change and a denied request, and returns its folder and its signer.
func auditLog(t *testing.T) (dir string, signer did.DID) {
	t.Helper()
	key, err := keystore.FromSeed([32]byte{7})
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	l, err := audit.Open(audit.Options{Dir: dir, Signer: key})
	if err != nil {
		t.Fatal(err)
	}
	l.Change(audit.ChangeTrust, "partner added: globex")
	l.Decision(audit.Decision{Who: did.Consumer(did.Loopback, ""), Op: "invoke", Thing: "urn:x:weather", Name: "ask", Code: interact.Forbidden})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, key.DID()
}

// asSigner is a node with the DID of the signer of a log.
func asSigner(signer did.DID) *fakeNode {
	n := newFake()
	n.status = func() *api.Status { return &api.Status{State: "ready", DID: signer, Version: "0.1.0"} }
	return n
}

func TestAuditOverHTTP(t *testing.T) {
	t.Parallel()
	dir, signer := auditLog(t)
	r := start(t, serving(asSigner(signer), Options{Operation: Operation{AuditDir: dir}}))
	c := dial(t, r.url, token)
	all, err := c.Audit(t.Context(), api.AuditQuery{})
	if err != nil || len(all.Items) != 2 || !all.Verified || all.Head == "" || len(all.Problems) != 0 {
		t.Fatalf("%+v, %v", all, err)
	}
	denied, err := c.Audit(t.Context(), api.AuditQuery{Decision: "deny", Code: "1403", Thing: "weather", Since: time.Hour, Limit: 5})
	if err != nil || len(denied.Items) != 1 {
		t.Fatalf("%+v, %v", denied, err)
	}
	if l := denied.Items[0]; l.Action != "invoke" || l.Name != "ask" || l.Decision != "deny" || l.Hash == "" || !strings.HasPrefix(l.ID, "denied/") {
		t.Errorf("%+v", l)
	}
	file := filepath.Join(dir, "000001.jsonl")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), "globex", "golbex", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err = c.Audit(t.Context(), api.AuditQuery{}); err != nil || all.Verified || len(all.Problems) == 0 {
		t.Errorf("changed: %+v, %v", all, err)
	}
}

// checkOf returns the check with a name.
func checkOf(d *api.Doctor, name string) api.DoctorCheck {
	for _, c := range d.Items {
		if c.Name == name {
			return c
		}
	}
	return api.DoctorCheck{}
}

// relayed is a node with a reservation that is in force.
type relayed struct{ *fakeNode }

func (n relayed) Net() *api.Net {
	net := n.fakeNode.Net()
	net.Relays[0].Until = time.Now().Add(time.Hour)
	return net
}

// An intact node passes every check.
func TestDoctorOfAnIntactNode(t *testing.T) {
	t.Parallel()
	dir, signer := auditLog(t)
	n := asSigner(signer)
	n.status = func() *api.Status {
		s := goldenStatus()
		s.State, s.DID, s.Warnings = "ready", signer, nil
		return s
	}
	r := start(t, serving(relayed{n}, Options{Operation: Operation{AuditDir: dir}, Bridges: []Bridge{countingBridge{}}}))
	d, err := dial(t, r.url, token).Doctor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range d.Items {
		if c.Status != api.CheckPass || c.Text == "" || strings.Contains(c.Text, "%!") {
			t.Errorf("%+v", c)
		}
	}
	for _, name := range []string{"node", "key", "clock", "disk", "store", "http", "socket", "listen", "peers", "reachability", "relays", "dht", "gossip",
		"directory", "audit", "bridge proto"} {
		if checkOf(d, name).Name == "" {
			t.Errorf("no check %s", name)
		}
	}
	if !d.OK {
		t.Error("not ok")
	}
}

// What is broken fails, with what can be done about it.
func TestDoctorOfABrokenNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() // without a log
	n := newFake()
	n.notReady = errors.New("the store is closed")
	n.status = func() *api.Status {
		s := &api.Status{State: "degraded", DID: owner1, Version: "0.1.0"}
		s.Agents.Fill = 0.95
		for code, severity := range map[string]string{"W001": "low", "W020": "high", "W031": "high", "W050": "medium", "W099": "high"} {
			s.Warnings = append(s.Warnings, api.Warning{Code: "LMOS-" + code, Title: "title-" + code, Severity: severity, Text: "text " + code, Hint: "hint " + code,
				Next: interact.Next(interact.StepPeers)})
		}
		return s
	}
	pair := newPair(t)
	pair.write(t)
	r := start(t, serving(n, Options{CertFile: pair.cert, KeyFile: pair.key, Operation: Operation{AuditDir: dir}, Bridges: []Bridge{countingBridge{errors.New("gone")}}}),
		func(g *Gateway) { g.cert.current.Leaf.NotAfter = time.Now().Add(-time.Hour) })
	d, err := dial(t, r.o.Socket, "").Doctor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"node": api.CheckFail, "peers": api.CheckWarn, "disk": api.CheckFail, "clock": api.CheckFail, "directory": api.CheckWarn,
		"title-W099": api.CheckFail, "certificate": api.CheckFail, "audit": api.CheckFail, "bridge proto": api.CheckFail, "listen": api.CheckWarn, "key": api.CheckPass} {
		if c := checkOf(d, name); c.Status != want || c.Text == "" {
			t.Errorf("%s: %+v, want %s", name, c, want)
		}
	}
	if d.OK {
		t.Error("ok")
	}
	if c := checkOf(d, "disk"); c.Text != "text W020" || c.Hint != "hint W020" || len(c.Next) != 1 {
		t.Errorf("%+v", c)
	}
	if c := checkOf(d, "certificate"); !strings.HasPrefix(c.Text, "expired at ") || c.Hint == "" {
		t.Errorf("%+v", c)
	}
}

// The credential of the node and the certificate of the API are reported before and after they end.
func TestDoctorOfTimes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		state string
		until time.Time
		want  string
	}{
		{api.OrganizationConfirmed, now.Add(12 * time.Hour), api.CheckPass},
		{api.OrganizationConfirmed, now.Add(30 * time.Minute), api.CheckWarn},
		{api.OrganizationConfirmed, now, api.CheckFail},
		{api.OrganizationUnconfirmed, now.Add(12 * time.Hour), api.CheckWarn},
		{api.OrganizationExpired, now.Add(-time.Hour), api.CheckFail},
		{api.OrganizationEnded, now.Add(12 * time.Hour), api.CheckFail},
	} {
		d := &diagnosis{g: &Gateway{o: Options{Trust: memberTrust{newFakeTrust(), c.state, c.until}}}, now: now}
		if d.organization(); len(d.items) != 1 || d.items[0].Status != c.want {
			t.Errorf("%s until %v: %+v", c.state, c.until, d.items)
		}
	}
	for left, want := range map[time.Duration]string{-time.Second: api.CheckFail, 24 * time.Hour: api.CheckWarn, 90 * 24 * time.Hour: api.CheckPass} {
		leaf := &x509.Certificate{NotBefore: now.Add(-time.Hour), NotAfter: now.Add(left), DNSNames: []string{"node.example"}}
		d := &diagnosis{g: &Gateway{cert: &certificate{current: &tls.Certificate{Leaf: leaf}, checked: time.Now()}}, now: now}
		if d.certificate(); len(d.items) != 1 || d.items[0].Status != want {
			t.Errorf("%v left: %+v", left, d.items)
		}
	}
	d := &diagnosis{g: &Gateway{}, net: &api.Net{Reachability: api.ReachablePrivate, RelayFailures: []api.RelayFailure{{Reason: "refused"}}}}
	d.reachability()
	d.relays()
	d.net.Relays = []api.NetRelay{{Until: now}}
	d.now = now
	d.relays()
	for i, want := range []string{api.CheckFail, api.CheckWarn, api.CheckWarn} {
		if d.items[i].Status != want {
			t.Errorf("%+v, want %s", d.items[i], want)
		}
	}
}

// memberTrust is a membership with a state and an end.
type memberTrust struct {
	*fakeTrust
	state string
	until time.Time
}

func (m memberTrust) Organization() (*api.Organization, error) {
	o := m.organization()
	o.State, o.Until = m.state, m.until
	return o, nil
}

// Golden documents of the routes for operators.
func TestGoldenOperator(t *testing.T) {
	t.Parallel()
	n := goldenNode()
	o, l, _ := logging()
	at := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	rec := slog.NewRecord(at, slog.LevelWarn, "certificate expired", 0)
	rec.Add("file", "/etc/lmosd/tls.crt", "took", 1500*time.Millisecond, "token", "x")
	if err := l.Handler(slog.DiscardHandler).Handle(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	o.Config = func() []api.ConfigItem {
		return []api.ConfigItem{{Key: "http.listen", Value: "127.0.0.1:4668", Origin: api.OriginFile, Where: "/etc/lmosd/lmosd.yaml:12"},
			{Key: "mesh.mdns", Value: true, Origin: api.OriginDefault}}
	}
	o.Log, o.Trust, o.Bridges = nil, memberTrust{newFakeTrust(), api.OrganizationExpired, at}, []Bridge{countingBridge{}}
	r := start(t, serving(introducing{n, at}, o))
	for name, x := range map[string]exchange{
		"config": {path: "/v1/config"}, "log-list": {path: "/v1/logs"}, "bridge-list": {path: "/v1/bridges"}, "discovery-list": {path: "/v1/discovered"},
		"trust": {path: "/v1/trust"}, "doctor": {method: "POST", path: "/v1/doctor"},
	} {
		x.header = asAdmin
		_, body := r.do(t, x)
		body = strings.ReplaceAll(body, strconv.FormatUint(l.Latest(), 10), "1795339809162485")
		body = strings.ReplaceAll(strings.ReplaceAll(body, strings.TrimPrefix(r.url, "http://"), "127.0.0.1:4668"), r.o.Socket, "/run/lmosd.sock")
		golden(t, name, []byte(body), r.url)
	}
}

// introducing is a node with an introduction.
type introducing struct {
	*fakeNode
	at time.Time
}

// Net returns one without times.
func (n introducing) Net() *api.Net {
	net := n.fakeNode.Net()
	net.Relays = nil
	return net
}

func (n introducing) Introduced() []api.Discovery {
	return []api.Discovery{{Name: "lamp", Source: "dns-sd", URL: "http://192.0.2.9/td", Type: "Thing", Host: "lamp.local", Addrs: []string{"192.0.2.9"},
		State: api.DiscoveryExplored, Things: []string{"urn:dev:lamp"}, At: n.at}}
}

// No check of the audit log begins after the end of the gateway.
func TestNoCheckAfterTheEnd(t *testing.T) {
	t.Parallel()
	dir, signer := auditLog(t)
	r := start(t, serving(asSigner(signer), Options{Operation: Operation{AuditDir: dir}}))
	if report, err := r.verifyAudit(t.Context()); err != nil || len(report.Chains) == 0 {
		t.Errorf("got %+v, %v", report, err)
	}
	r.end()
	if report, err := r.verifyAudit(t.Context()); report != nil || interact.AsError(err).Code != interact.ShuttingDown {
		t.Errorf("after the end: %+v, %v", report, err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}
