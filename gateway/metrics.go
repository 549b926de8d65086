package gateway

import (
	"cmp"
	"context"
	"iter"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/buildinfo"
	"github.com/lmosd/lmosd/journal"
	"github.com/lmosd/lmosd/td"
)

// Metrics counts the work of a node, for GET /metrics (names begin with lmosd_) and [Status.Calls]. No label contains a peer, DID, Thing or
// host. It is safe for concurrent use.
type Metrics struct {
	registry       *prometheus.Registry
	calls          *prometheus.CounterVec
	callSeconds    *prometheus.HistogramVec
	requests       *prometheus.CounterVec
	requestSeconds *prometheus.HistogramVec
	publishes      *prometheus.CounterVec
	events         *prometheus.CounterVec
	finds          *prometheus.CounterVec
	findSeconds    prometheus.Histogram
	findResults    prometheus.Histogram
	publishSeconds prometheus.Histogram
	publishCopies  prometheus.Histogram

	journal *journal.Journal

	mu     sync.Mutex
	series map[seriesKey]*series // owned by mu

	total, failed atomic.Uint64
	inFlight      atomic.Int64
	recent        recent

	kindsMu sync.RWMutex
	kinds   map[requestKind]requestSeries // owned by kindsMu
}

// buckets are the bounds of all histograms, in seconds.
var buckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// NewMetrics returns metrics with their own registry, which includes those of Go and of the process.
func NewMetrics() *Metrics {
	m := &Metrics{
		journal:        journal.New(),
		kinds:          map[requestKind]requestSeries{},
		registry:       prometheus.NewRegistry(),
		series:         map[seriesKey]*series{},
		calls:          counter("calls_total", "Interactions, by result.", "op", "protocol", "result"),
		callSeconds:    histogram("call_seconds", "Duration of interactions without observations and subscriptions.", "op", "protocol", "stage"),
		requests:       counter("http_requests_total", "HTTP requests.", "route", "code"),
		requestSeconds: histogram("http_request_seconds", "Duration of HTTP requests.", "route"),
		publishes:      counter("td_publish_total", "Requests for a publication, by result.", "result"),
		events: counter("events_total", "Events and readings for HTTP consumers, by the kind of delivery, sent or dropped.",
			"kind", "dropped"),
		finds:          counter("finds_total", "Searches, by coverage: partial if a queried peer has not answered or a limit ended the search.", "coverage"),
		findSeconds:    simpleHistogram("find_seconds", "Duration of searches.", buckets),
		findResults:    simpleHistogram("find_results", "Results of a search in one answer.", []float64{0, 1, 2, 5, 10, 20, 50, 100, 200, 500}),
		publishSeconds: simpleHistogram("td_publish_seconds", "Duration of publications, with the part of the announcement that they wait for.", buckets),
		publishCopies:  simpleHistogram("td_publish_replicas", "DHT servers that had stored a record at the end of its publication.", []float64{0, 1, 2, 3, 5, 10, 15, 20}),
	}
	inFlight := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "lmosd_calls_in_flight",
		Help: "Running interactions."},
		func() float64 { return float64(m.inFlight.Load()) })
	for _, kind := range []string{"sse", "longpoll", "webhook"} {
		for _, dropped := range []string{"false", "true"} {
			m.events.WithLabelValues(kind, dropped) // export zeros, too
		}
	}
	for _, complete := range []bool{true, false} {
		m.finds.WithLabelValues(coverageLabel(complete))
	}
	m.registry.MustRegister(m.calls, m.callSeconds, m.requests, m.requestSeconds, m.publishes, m.events, m.finds, m.findSeconds, m.findResults, m.publishSeconds, m.publishCopies, inFlight,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Journal returns what the node did lately: GET /v1/events, /v1/series and /v1/calls.
func (m *Metrics) Journal() *journal.Journal { return m.journal }

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lmosd_" + name, Help: help}, labels)
}

func histogram(name, help string, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "lmosd_" + name, Help: help, Buckets: buckets},
		labels)
}

func simpleHistogram(name, help string, bounds []float64) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "lmosd_" + name, Help: help, Buckets: bounds})
}

// Registerer returns the registry for the metrics of libp2p.
func (m *Metrics) Registerer() prometheus.Registerer { return m.registry }

// stageTotal is the stage of an interaction as a whole.
const stageTotal = "total"

// Middleware counts and times all interactions. The label protocol is "mesh" for those of this node's consumers and "stream" for those of
// other nodes. [Status.Calls] is the sum of all.
func (m *Metrics) Middleware(protocol string) interact.Middleware {
	return m.wrap(stageTotal, protocol, true)
}

// Stage times a stage of interactions that [Metrics.Middleware] counts: "mesh" is the path through the mesh, "stream" a request over a
// stream, "agent" the agent; protocol is the binding, such as "http" or "mqtt". Both are labels, so they must have few values.
func (m *Metrics) Stage(stage, protocol string) interact.Middleware {
	return m.wrap(stage, protocol, false)
}

// wrap times interactions, and counts them if count is set.
func (m *Metrics) wrap(stage, protocol string, count bool) interact.Middleware {
	s := m.seriesOf(seriesKey{protocol, stage, count})
	return func(next interact.Thing) interact.Thing {
		return interact.Func(func(ctx context.Context, msg *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				c := interaction{series: s, op: opOf(msg.Type), start: time.Now(), yield: yield}
				if count {
					m.inFlight.Add(1)
				}
				defer c.done()
				next.Do(ctx, msg)(c.reply)
			}
		})
	}
}

// seriesOf returns the series of a key. All agents of a protocol share one, because its tables have 10 kB.
func (m *Metrics) seriesOf(k seriesKey) *series {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.series[k]
	if s == nil {
		s = &series{metrics: m, seriesKey: k}
		m.series[k] = s
	}
	return s
}

// An interaction is the measurement of a running interaction.
type interaction struct {
	*series
	op    int
	start time.Time
	err   error
	yield func(*interact.Message, error) bool
}

func (c *interaction) reply(r *interact.Message, err error) bool {
	if err != nil {
		c.err = err
	}
	return c.yield(r, err)
}

// done counts the interaction. A consumer that leaves the loop early is not a failure.
func (c *interaction) done() {
	took, timed := time.Since(c.start), !interact.Type(c.op).Long()
	if timed {
		c.observer(c.op).Observe(took.Seconds())
	}
	if !c.counts {
		return
	}
	m, result := c.metrics, resultOf(c.err)
	m.inFlight.Add(-1)
	m.total.Add(1)
	if result != okResult && result != cancelledResult {
		m.failed.Add(1)
	}
	c.counter(c.op, result).Inc()
	if timed {
		m.recent.add(took)
	}
}

// opCount is the number of values of the label op: the message types of requests, and 0 for others.
const opCount = int(interact.ContinueAction) + 1

// opName is the value of the label op: an operation of TD 1.1 §5.3.4.2, or "other".
func opName(op int) string { return cmp.Or(interact.Type(op).Op(), "other") }

func opOf(t interact.Type) int {
	if t.Op() != "" && int(t) < opCount {
		return int(t)
	}
	return 0
}

// results are the values of the label result: "ok" and the slugs of the error codes. resultIndex has their indexes by code.
var (
	results, resultIndex = resultLabels()
	cancelledResult      = resultIndex[interact.Cancelled]
)

const okResult = 0

func resultLabels() ([]string, map[interact.Code]int) {
	codes := interact.Codes()
	slices.Sort(codes)
	labels, index := []string{"ok"}, make(map[interact.Code]int, len(codes))
	for _, c := range codes {
		index[c] = len(labels)
		labels = append(labels, c.Slug())
	}
	return labels, index
}

func resultOf(err error) int {
	if err == nil {
		return okResult
	}
	if i, ok := resultIndex[interact.AsError(err).Code]; ok {
		return i
	}
	return resultIndex[interact.Internal]
}

// A seriesKey identifies a series.
type seriesKey struct {
	protocol, stage string
	counts          bool // counted, not only timed
}

// series holds the counters of one protocol and stage. Each is created on first use, so that unused ones are not exported.
type series struct {
	seriesKey
	metrics   *Metrics
	counters  [opCount][64]atomic.Pointer[prometheus.Counter] // there are fewer than 64 codes
	observers [opCount]atomic.Pointer[prometheus.Observer]
}

func (s *series) counter(op, result int) prometheus.Counter {
	p := &s.counters[op][result]
	if c := p.Load(); c != nil {
		return *c
	}
	c := s.metrics.calls.WithLabelValues(opName(op), s.protocol, results[result])
	p.Store(&c)
	return c
}

func (s *series) observer(op int) prometheus.Observer {
	p := &s.observers[op]
	if o := p.Load(); o != nil {
		return *o
	}
	o := s.metrics.callSeconds.WithLabelValues(opName(op), s.protocol, s.stage)
	p.Store(&o)
	return o
}

// recent holds the durations of the last calls, in microseconds.
type recent struct {
	next  atomic.Uint64
	times [1024]atomic.Uint32
}

func (r *recent) add(d time.Duration) {
	i := r.next.Add(1) - 1
	us := min(max(d.Microseconds(), 0), 1<<32-1)
	r.times[i%uint64(len(r.times))].Store(uint32(us))
}

// percentiles returns the given fractions (0 to 1) of the recent durations, in milliseconds; zeros without calls.
func (r *recent) percentiles(fractions ...float64) []float64 {
	return r.last(r.next.Load(), fractions...)
}

// last is percentiles of the last n durations, as far as they are kept.
func (r *recent) last(n uint64, fractions ...float64) []float64 {
	next := r.next.Load()
	n = min(n, next, uint64(len(r.times)))
	us := make([]uint32, n)
	for i := range us {
		us[i] = r.times[(next-1-uint64(i))%uint64(len(r.times))].Load()
	}
	slices.Sort(us)
	out := make([]float64, len(fractions))
	for i, f := range fractions {
		if n > 0 {
			out[i] = float64(us[min(int(f*float64(n)), int(n)-1)]) / 1000
		}
	}
	return out
}

// FillCalls sets s.Calls except Queue. The percentiles are those of the last 1024 calls.
func (m *Metrics) FillCalls(s *api.Status) {
	p := m.recent.percentiles(0.5, 0.99)
	s.Calls.Total, s.Calls.Errors = m.total.Load(), m.failed.Load()
	s.Calls.P50, s.Calls.P99 = p[0], p[1]
}

// request counts one HTTP request by the pattern of its route.
func (m *Metrics) request(route string, status int, took time.Duration) {
	status = cmp.Or(status, http.StatusOK) // net/http sends it for a handler that wrote nothing
	k := requestKind{route, status}
	s := m.requestsOf(k)
	s.count.Inc()
	s.seconds.Observe(took.Seconds())
}

// A requestKind is the labels of HTTP requests. There are as many as routes and statuses of responses.
type requestKind struct {
	route  string
	status int
}

// A requestSeries is the metrics of one kind of HTTP requests.
type requestSeries struct {
	count   prometheus.Counter
	seconds prometheus.Observer
}

// requestsOf returns the metrics of k, which it creates at their first use.
func (m *Metrics) requestsOf(k requestKind) requestSeries {
	m.kindsMu.RLock()
	s, ok := m.kinds[k]
	m.kindsMu.RUnlock()
	if ok {
		return s
	}
	s = requestSeries{m.requests.WithLabelValues(k.route, strconv.Itoa(k.status)), m.requestSeconds.WithLabelValues(k.route)}
	m.kindsMu.Lock()
	defer m.kindsMu.Unlock()
	m.kinds[k] = s
	return s
}

// published counts one publication: ok, under_replicated (fewer than half of the wanted DHT servers stored it), pending (no other node has it
// yet), or its error.
func (m *Metrics) published(p *api.Publication, err error) {
	result := results[resultOf(err)]
	switch {
	case err != nil:
	case p.Pending:
		result = "pending"
	case 2*p.Replicas < p.Wanted:
		result = "under_replicated"
	}
	m.publishes.WithLabelValues(result).Inc()
	if err == nil {
		m.publishSeconds.Observe(p.Took / 1000)
		m.publishCopies.Observe(float64(p.Replicas))
	}
}

// event counts one event or reading that was sent to a consumer or dropped.
func (m *Metrics) event(kind string, dropped bool) {
	m.events.WithLabelValues(kind, strconv.FormatBool(dropped)).Inc()
}

// found counts one search with a number of results.
func (m *Metrics) found(took time.Duration, results int, c td.Coverage) {
	m.findResults.Observe(float64(results))
	m.findSeconds.Observe(took.Seconds())
	m.finds.WithLabelValues(coverageLabel(c.Complete())).Inc()
}

func coverageLabel(complete bool) string {
	if complete {
		return "complete"
	}
	return "partial"
}

// A Counter is a counter of a part of the node since it started.
type Counter struct {
	// Name is the name without "lmosd_": "gossip_messages_total".
	Name string
	// Label and Value are one label and its value; both may be empty. A label must have few values.
	Label, Value string
	Count        float64
	Gauge        bool // Count can fall
}

// handler serves the registry, and the current state of the node of g.
func (m *Metrics) handler(g *Gateway) http.Handler {
	state := prometheus.NewRegistry()
	state.MustRegister(&collector{g: g})
	if g.o.Counters != nil {
		state.MustRegister(counterCollector(g.o.Counters))
	}
	return promhttp.HandlerFor(prometheus.Gatherers{m.registry, state}, promhttp.HandlerOpts{
		// A part with invalid metrics does not hide the others.
		ErrorHandling: promhttp.ContinueOnError,
	})
}

// collector exports the state of the node.
type collector struct{ g *Gateway }

var (
	nodeInfo  = desc("node_info", "The node; always 1.", "profile", "dht_mode")
	callDesc  = desc("bridge_calls_total", "Requests of clients to bridges.", "bridge", "result")
	buildInfo = desc("build_info", "The program; always 1.", "version", "goversion", "commit")
	readyDesc = desc("ready", "1 while the node serves.")
	peersDesc = desc("peers", "Connected nodes.", "direction", "transport")
	agentDesc = desc("agents", "Descriptions in the index.", "source")
	fillDesc  = desc("directory_fill", "Fraction of the index that records of other nodes occupy.")
	warnDesc  = desc("health_warnings", "Warnings of the node that hold now, by code.", "code", "severity")
	untilDesc = desc("expiry_timestamp_seconds", "The end of validity, as Unix time: of the certificate of the API, and of the membership of the node.", "of")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("lmosd_"+name, help, labels, nil)
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{buildInfo, nodeInfo, callDesc, readyDesc, peersDesc, agentDesc, fillDesc, warnDesc, untilDesc} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	s := c.g.o.Status.Status(did.AsProcess(context.Background()))
	gauge(buildInfo, 1, s.Version, runtime.Version(), buildinfo.Commit())
	gauge(nodeInfo, 1, s.Profile, s.DHT.Mode)
	for i, b := range c.g.o.Bridges {
		failed, all := c.g.bridgeUses[i].errors.Load(), c.g.bridgeUses[i].requests.Load() // in the order that makes no result negative
		for result, n := range map[string]uint64{"ok": all - failed, "error": failed} {
			ch <- prometheus.MustNewConstMetric(callDesc, prometheus.CounterValue, float64(n), bridgeName(b), result)
		}
	}
	serves := 0.0
	if c.g.o.Status.Ready() == nil && !c.g.gate.Closed() {
		serves = 1
	}
	gauge(readyDesc, serves)
	gauge(agentDesc, float64(s.Agents.Local), "local")
	gauge(agentDesc, float64(s.Agents.Known), "known")
	gauge(fillDesc, s.Agents.Fill)
	peers := map[[2]string]float64{}
	for _, p := range c.g.o.Peers.List() {
		peers[[2]string{p.Direction, p.Transport}]++
	}
	for labels, n := range peers {
		gauge(peersDesc, n, labels[0], labels[1])
	}
	for labels, n := range countWarnings(s.Warnings) {
		gauge(warnDesc, n, labels[0], labels[1])
	}
	if c.g.cert != nil {
		if cert, err := c.g.cert.get(nil); err == nil {
			gauge(untilDesc, float64(cert.Leaf.NotAfter.Unix()), "certificate")
		}
	}
	if c.g.o.Trust != nil {
		if org, err := c.g.o.Trust.Organization(); err == nil && !org.Until.IsZero() {
			gauge(untilDesc, float64(org.Until.Unix()), "membership")
		}
	}
}

// countWarnings returns the number of warnings by code and severity. Codes without a warning have a zero, so that a rule can name each.
func countWarnings(ws []api.Warning) map[[2]string]float64 {
	n := map[[2]string]float64{}
	for _, k := range api.WarningKinds() {
		n[[2]string{k.Code, k.Severity}] = 0
	}
	for _, w := range ws {
		n[[2]string{w.Code, w.Severity}]++
	}
	return n
}

// A counterCollector exports the Counters of the options. It describes no metric, so that the registry accepts all.
type counterCollector func() []Counter

// Describe implements [prometheus.Collector].
func (counterCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (f counterCollector) Collect(ch chan<- prometheus.Metric) {
	for _, c := range f() {
		var labels, values []string
		if c.Label != "" {
			labels, values = []string{c.Label}, []string{c.Value}
		}
		kind, help := prometheus.CounterValue, "A counter of a component of the node."
		if c.Gauge {
			kind, help = prometheus.GaugeValue, "A state of a component of the node."
		}
		d := desc(c.Name, help, labels...)
		metric, err := prometheus.NewConstMetric(d, kind, c.Count, values...)
		if err != nil {
			metric = prometheus.NewInvalidMetric(d, err)
		}
		ch <- metric
	}
}
