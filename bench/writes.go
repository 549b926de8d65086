package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	writers      = 8
	writesOfOne  = 1000 // of one measurement
	listedThings = 2000
)

// A tdd is a process with a W3C directory over HTTP.
type tdd struct {
	name, url, pid string
	client         *http.Client
	things         int // the Things with the numbers below are created
	stop           func()
}

// tdds are the compared directories. dir is a new directory for each.
var tdds = []struct {
	name  string
	start func(ctx context.Context, dir string) (t *tdd, err error)
}{
	{"lmosd", func(ctx context.Context, dir string) (*tdd, error) {
		d, err := startDaemon(ctx, dir, 0)
		if err != nil {
			return nil, err
		}
		return &tdd{url: d.url, pid: d.pid, stop: func() { d.stop(syscall.SIGTERM) }}, nil
	}},
	{"plain server", func(ctx context.Context, dir string) (*tdd, error) {
		url, pid, stop, err := childProcess(ctx, "plain-tdd="+dir)
		return &tdd{url: url, pid: pid, stop: stop}, err
	}},
	{linksmart, startLinksmart},
}

// ownTD is a small agent, of 0.8 kB.
func ownTD(i int) []byte {
	return fmt.Appendf(nil, `{"@context":["https://www.w3.org/2019/wot/td/v1","https://www.w3.org/2022/wot/td/v1.1",{"lmos":"https://eclipse.dev/lmos/protocol/v1"}],
"@type":"lmos:Agent","id":%q,"title":"Worker %d","securityDefinitions":{"nosec_sc":{"scheme":"nosec"}},"security":["nosec_sc"],
"lmos:capabilities":[{"id":"urn:example:family-%02[3]d:skill-%04[2]d","name":"work","version":"1.0.0","description":"Does one kind of work."}],
"actions":{"work":{"synchronous":true,"input":{"type":"string"},"output":{"type":"string"},
"forms":[{"href":"http://127.0.0.1:1/work","op":["invokeaction"],"contentType":"application/json"}]}}}`, ownID(i), i, i%50)
}

func ownID(i int) string { return fmt.Sprintf("urn:example:own:%06d", i) }

// writes compares the directory of a node, which signs, verifies, indexes and stores Things, with a server that only stores them, durably as
// well, and with another directory: creates at several numbers of own Things, updates, deletes, lists and queries.
func writes(ctx context.Context, p plan) error {
	dir, err := os.MkdirTemp("", "bench-writes")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var (
		all  []*tdd
		pids []string
	)
	for i, t := range tdds {
		s, err := t.start(ctx, filepath.Join(dir, strconv.Itoa(i)))
		if without := skip(""); errors.As(err, &without) {
			p.say("%s is left out: %v", t.name, without)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		defer s.stop()
		s.name, s.client = t.name, webClient()
		all, pids = append(all, s), append(pids, s.pid)
	}
	writing := func(s *tdd, what, method string, first int) (written, error) {
		if err := rest(ctx, pids); err != nil {
			return written{}, err
		}
		return p.writing(ctx, s, what, method, first)
	}
	lmosd, reads := all[0], &report{}
	p.table(fmt.Sprintf("%d clients | own Things before | writes/s | p50 | p99 | CPU of each at the server | RSS after", writers))
	var first, last written
	for _, level := range []int{0, listedThings - writesOfOne, 5000, 10_000} {
		for _, s := range all {
			if err := s.fill(ctx, level); err != nil {
				return err
			}
			f, err := writing(s, "create", http.MethodPut, level)
			if err != nil {
				return err
			}
			s.things += writesOfOne
			if s == lmosd && level == 0 {
				first = f
			} else if s == lmosd {
				last = f
			}
		}
		if lmosd.things == listedThings {
			if err := readTable(ctx, plan{reads, p.rounds, p.length}, all); err != nil {
				return err
			}
		}
	}
	p.writeGoals("create at 10,000 Things", last)
	p.atMost("the CPU of such a create / in an empty directory", ms(last.cpu)/ms(first.cpu), 1.25, "")
	p.atMost("RSS of the node then", float64(last.rss)/(1<<20), 300, " MiB")
	for _, change := range []struct{ what, method string }{{"update", http.MethodPut}, {"delete", http.MethodDelete}} {
		for _, s := range all {
			f, err := writing(s, change.what, change.method, s.things/2)
			if err != nil {
				return err
			}
			if s == lmosd {
				p.writeGoals(change.what, f)
			}
		}
	}
	p.say("%s", strings.TrimSpace(reads.text.String()))
	p.goals = append(p.goals, reads.goals...)
	return nil
}

// written is the measurement of some writes.
type written struct {
	figure
	cpu time.Duration // of the server, for each
	rss int           // bytes
}

func (p plan) writeGoals(what string, f written) {
	p.atLeast(what+", by 8 clients", f.rate, 1200, "/s")
	p.atMost(what+", p50", ms(f.p50), 6, " ms")
	p.atMost(what+", CPU of the node", ms(f.cpu), 1.2, " ms")
}

// writing measures writes of the Things from first on, and adds a row.
func (p plan) writing(ctx context.Context, s *tdd, what, method string, first int) (written, error) {
	before := processorTime(s.pid)
	f, err := s.write(ctx, method, first, writesOfOne)
	if err != nil {
		return written{}, fmt.Errorf("%s, %s: %w", s.name, what, err)
	}
	w := written{f, (processorTime(s.pid) - before) / writesOfOne, rss(s.pid)}
	p.row("%s, %s | %d | %.0f | %.2f ms | %.2f ms | %.2f ms | %d MiB", s.name, what, s.things, w.rate, ms(w.p50), ms(w.p99), ms(w.cpu), w.rss>>20)
	progress("%-12s %s at %5d  %7.0f/s  p50 %v  p99 %v  CPU %v  RSS %d MiB", s.name, what, s.things, w.rate, w.p50, w.p99, w.cpu, w.rss>>20)
	return w, nil
}

// fill creates Things until there are n.
func (s *tdd) fill(ctx context.Context, n int) error {
	if s.things >= n {
		return nil
	}
	_, err := s.write(ctx, http.MethodPut, s.things, n-s.things)
	s.things = n
	return err
}

// write creates, updates or deletes n Things from number first on, with all writers at once. An existing Thing gets another title.
func (s *tdd) write(ctx context.Context, method string, first, n int) (figure, error) {
	bodies := make([][]byte, n)
	for i := range bodies {
		if method == http.MethodPut {
			bodies[i] = ownTD(first + i)
		}
		if first+i < s.things {
			bodies[i] = bytes.Replace(bodies[i], []byte(`"title":"`), []byte(`"title":"New `), 1)
		}
	}
	times, errs := make([]time.Duration, n), make([]error, writers)
	var next atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for w := range writers {
		all.Go(func() {
			for errs[w] == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				start := time.Now()
				errs[w] = s.writeOne(ctx, method, ownID(first+i), bodies[i])
				times[i] = time.Since(start)
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	if err := errors.Join(errs...); err != nil {
		return figure{}, err
	}
	slices.Sort(times)
	return figure{p50: times[n/2], p99: times[n*99/100], rate: float64(n) / took.Seconds()}, nil
}

func (s *tdd) writeOne(ctx context.Context, method, id string, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, method, s.url+"/things/"+id, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/td+json")
	_, err = exchange(s.client, r, http.StatusOK, http.StatusCreated, http.StatusNoContent)
	return err
}

// exchange sends a request and returns the body of the response, which must have one of the statuses.
func exchange(client *http.Client, r *http.Request, statuses ...int) ([]byte, error) {
	res, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && !slices.Contains(statuses, res.StatusCode) {
		err = fmt.Errorf("%s %s: %s: %.300s", r.Method, r.URL.Path, res.Status, b)
	}
	return b, err
}

// readTable compares lists and queries of the Things of directories.
func readTable(ctx context.Context, p plan, all []*tdd) error {
	p.table(fmt.Sprintf("%d own Things | p50 | p99 | answer", listedThings))
	for _, q := range []struct{ what, path string }{
		{"list of all", "/things"},
		{"JSONPath, one title", "/search/jsonpath?query=" + url.QueryEscape(`$[?@.title=='Worker 777'].id`)},
		{"JSONPath, all ids", "/search/jsonpath?query=" + url.QueryEscape(`$[*].id`)},
	} {
		var systems []system
		size := map[string]int{}
		for _, s := range all {
			path := q.path
			if s.name == linksmart {
				path = strings.ReplaceAll(path, url.QueryEscape("?@.title=='Worker 777'"), url.QueryEscape("?(@.title=='Worker 777')"))
			}
			systems = append(systems, system{s.name, func(ctx context.Context) (dialer, func(), error) {
				b, err := s.get(ctx, path)
				size[s.name] = len(b)
				return func() (caller, error) {
					return caller{close: func() {}, call: func(ctx context.Context) error {
						b, err := s.get(ctx, path)
						if err == nil && max(len(b)-size[s.name], size[s.name]-len(b)) > size[s.name]/100 { // times differ in length
							err = fmt.Errorf("%s has %d bytes, and had %d", path, len(b), size[s.name])
						}
						return err
					}}, nil
				}, func() {}, err
			}})
		}
		figures, err := compare(ctx, p, systems, 1)
		if err != nil {
			return fmt.Errorf("%s: %w", q.what, err)
		}
		for _, s := range systems {
			f := figures.of(s.name, 1)
			p.row("%s, %s | %.2f ms | %.2f ms | %d bytes", s.name, q.what, ms(f.p50), ms(f.p99), size[s.name])
		}
		if figures[linksmart] != nil {
			p.atMost(q.what+", p50, lmosd / "+linksmart, figures.time("lmosd", linksmart), 1, "")
		}
	}
	return nil
}

func (s *tdd) get(ctx context.Context, path string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return nil, err
	}
	return exchange(s.client, r, http.StatusOK)
}
