package main

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/internal/sse"
)

// operatorRoutes are the routes about the operation of a fake node: two log records, and bridges. Checks of a bare one fail.
func (n *fakeNode) operatorRoutes(mux *http.ServeMux) {
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	records := []api.LogRecord{
		{Seq: 7, At: at, Level: "info", Logger: "publication", Text: "published", Fields: map[string]any{"seq": 17, "td": "weather"}},
		{Seq: 9, At: at.Add(time.Second), Level: "warn", Logger: "gateway", Text: "certificate not replaced", Fields: map[string]any{"err": "no such file"}},
	}
	levels := api.LogLevels{Levels: map[string]string{"*": "info"}, Loggers: []string{"gateway", "publication"}}
	mux.HandleFunc("GET /v1/logs", n.guard(func(w http.ResponseWriter, r *http.Request) {
		q, shown := r.URL.Query(), []api.LogRecord{}
		for _, one := range records {
			if (q.Get("level") == "" || one.Level == q.Get("level")) && (q.Get("logger") == "" || one.Logger == q.Get("logger")) {
				shown = append(shown, one)
			}
		}
		if r.Header.Get("Accept") != sse.MediaType {
			answer(w, api.LogList{APIVersion: api.APIVersion, Kind: "LogList", Items: shown, Latest: 9, LogLevels: levels})
			return
		}
		e := sse.NewWriter(w, 0)
		for _, one := range shown {
			data, _ := json.Marshal(one)
			_ = e.Send("log", strconv.FormatUint(one.Seq, 10), data)
		}
		data, _ := json.Marshal(api.LogGap{Kind: "gap", From: 10, To: 12})
		_ = e.Send("gap", "12", data)
		if q.Get("logger") == "" {
			problem.Send(e, interact.Errorf(interact.Internal, "look at the log", "the fake has no more"))
		}
	}))
	mux.HandleFunc("PUT /v1/logs/{logger...}", n.guard(func(w http.ResponseWriter, r *http.Request) {
		var body api.LogLevelRequest
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Level == "loud" {
			problem.Write(w, r, interact.Errorf(interact.Invalid, "one of debug, info, warn, error", "unknown level %q", body.Level))
			return
		}
		now := api.LogLevels{Levels: map[string]string{"*": "info", r.PathValue("logger"): body.Level}, Loggers: levels.Loggers}
		answer(w, api.LogLevelsDocument{APIVersion: api.APIVersion, Kind: "LogLevels", LogLevels: now})
	}))
	mux.HandleFunc("DELETE /v1/logs/{logger...}", n.guard(func(w http.ResponseWriter, _ *http.Request) {
		answer(w, api.LogLevelsDocument{APIVersion: api.APIVersion, Kind: "LogLevels", LogLevels: levels})
	}))
	mux.HandleFunc("POST /v1/doctor", n.guard(func(w http.ResponseWriter, _ *http.Request) {
		d := api.Doctor{APIVersion: api.APIVersion, Kind: "Doctor", OK: !n.bare, Took: 3.5, Items: []api.DoctorCheck{{Name: "key", Status: api.CheckPass, Text: "Ed25519, z6Mk"}}}
		if n.bare {
			d.Items = append(d.Items, api.DoctorCheck{Name: "peers", Status: api.CheckWarn, Text: "no node is connected", Hint: "connect to a peer", Next: interact.Next(interact.StepConnect)},
				api.DoctorCheck{Name: "disk", Status: api.CheckFail, Text: "the disk is full", Hint: "make room"})
		}
		answer(w, d)
	}))
	mux.HandleFunc("GET /v1/config", n.guard(func(w http.ResponseWriter, _ *http.Request) {
		answer(w, api.Config{APIVersion: api.APIVersion, Kind: "Config", Items: []api.ConfigItem{{Key: "http.listen", Value: "127.0.0.1:4670", Origin: api.OriginFile, Where: "/etc/lmosd/lmosd.yaml:12"},
			{Key: "mesh.bootstrap", Value: []string{"/dnsaddr/a.example", "/dnsaddr/b.example"}, Origin: api.OriginFlag, Where: "--mesh.bootstrap"}, {Key: "mesh.mdns", Value: true, Origin: api.OriginDefault}}})
	}))
	mux.HandleFunc("POST /v1/config/reload", n.guard(func(w http.ResponseWriter, _ *http.Request) {
		answer(w, api.ConfigReload{APIVersion: api.APIVersion, Kind: "ConfigReload", File: "/etc/lmosd/lmosd.yaml", Applied: []string{"trust.rate.per_peer"},
			Restart: []string{"mesh.mdns"}, Agents: []api.ReloadedAgent{{Name: "weather", State: api.AgentStarted}}, Took: 1.5})
	}))
	mux.HandleFunc("GET /metrics", n.guard(func(w http.ResponseWriter, r *http.Request) {
		if n.bare {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(fakeMetrics))
	}))
	mux.HandleFunc("GET /v1/bridges", n.guard(func(w http.ResponseWriter, _ *http.Request) {
		answer(w, api.BridgeList{APIVersion: api.APIVersion, Kind: "BridgeList", Items: []api.BridgeInfo{{Name: "mcp", Paths: []string{"/mcp", "/mcp/things/{name}"}, Requests: 12, Errors: 1, Last: at, Status: api.CheckPass},
			{Name: "a2a", Paths: []string{"/a2a/"}, Status: api.CheckFail, Text: "no card"}}})
	}))
	mux.HandleFunc("GET /v1/discovered", n.guard(func(w http.ResponseWriter, _ *http.Request) {
		list := api.DiscoveryList{APIVersion: api.APIVersion, Kind: "DiscoveryList", Items: []api.Discovery{}}
		if !n.bare {
			list.Items = append(list.Items, api.Discovery{Name: "lamp", Source: "dns-sd", URL: "http://192.0.2.9/td", Type: "Thing", Host: "lamp.local", Addrs: []string{"192.0.2.9"},
				State: api.DiscoveryFailed, Error: "status 500", Things: []string{}, At: at})
		}
		answer(w, list)
	}))
	mux.HandleFunc("GET /v1/trust", n.guard(func(w http.ResponseWriter, _ *http.Request) {
		t := api.TrustOverview{APIVersion: api.APIVersion, Kind: "Trust", Partners: []api.Partner{}, Issuers: []api.ForeignIssuer{}, Credentials: []api.ForeignCredential{},
			Groups: []api.Group{}, Invitations: []api.Invitation{}, Waiting: []api.TrustWaiting{}}
		if !n.bare {
			t.Organization = &api.Organization{Name: "acme.example", State: api.OrganizationConfirmed}
			t.Partners = append(t.Partners, api.Partner{Name: "globex"})
			t.Waiting = append(t.Waiting, api.TrustWaiting{Kind: api.WaitingPartner, Name: "globex", SCID: "QmScid", Words: []string{"abandon", "zoo"},
				Next: interact.Next(interact.StepConfirm, "globex")})
		}
		answer(w, t)
	}))
}

// fakeMetrics are the metrics of a fake node.
const fakeMetrics = `# TYPE lmosd_health_warnings gauge
lmosd_health_warnings{code="LMOS-W001",severity="low"} 1
# HELP lmosd_calls_total Interactions, by result.
# TYPE lmosd_calls_total counter
lmosd_calls_total{op="invokeaction",protocol="mesh",result="ok"} 40
lmosd_calls_total{op="invokeaction",protocol="mesh",result="timeout"} 2
# HELP lmosd_call_seconds Duration of interactions.
# TYPE lmosd_call_seconds histogram
lmosd_call_seconds_bucket{op="invokeaction",protocol="mesh",stage="total",le="0.01"} 41
lmosd_call_seconds_bucket{op="invokeaction",protocol="mesh",stage="total",le="+Inf"} 42
lmosd_call_seconds_sum{op="invokeaction",protocol="mesh",stage="total"} 0.5
lmosd_call_seconds_count{op="invokeaction",protocol="mesh",stage="total"} 42
# HELP lmosd_disk_free_bytes A state of a component of the node.
# TYPE lmosd_disk_free_bytes gauge
lmosd_disk_free_bytes 4.5e+10
# HELP lmosd_panics_total A counter of a component of the node.
# TYPE lmosd_panics_total counter
lmosd_panics_total 0
# HELP go_goroutines Number of goroutines that currently exist.
# TYPE go_goroutines gauge
go_goroutines 81
`
