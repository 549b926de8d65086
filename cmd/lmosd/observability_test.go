package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/internal/testprogram"
)

// alertRules are the files of configs/prometheus.
type alertRules struct {
	Groups []struct {
		Rules []struct {
			Alert, Expr         string
			Labels, Annotations map[string]string
		}
	}
}

func readAlerts(t *testing.T) (a alertRules) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(readFile(t, "configs/prometheus/alerts.yaml")), &a); err != nil {
		t.Fatal(err)
	}
	return a
}

// A dashboard is a file of configs/grafana, as far as it is tested.
type dashboard struct {
	UID, Title    string
	SchemaVersion int
	Templating    struct {
		List []struct{ Name, Type string }
	}
	Annotations struct{ List []struct{ Expr string } }
	Panels      []struct {
		ID                       int
		Type, Title, Description string
		Datasource               struct{ UID string }
		FieldConfig              struct{ Defaults struct{ Unit string } }
		GridPos                  struct{ X, Y, W, H int }
		Targets                  []struct {
			Expr, RefID string
			Datasource  struct{ UID string }
		}
	}
}

func readDashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	files, err := filepath.Glob("../../configs/grafana/*.json")
	if err != nil || len(files) != 4 {
		t.Fatalf("%d dashboards, %v", len(files), err)
	}
	all := map[string]dashboard{}
	for _, f := range files {
		var d dashboard
		b, err := os.ReadFile(f)
		if err == nil {
			err = json.Unmarshal(b, &d)
		}
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		all[filepath.Base(f)] = d
	}
	return all
}

// dashboardQueries returns the expressions of all dashboards, with values in place of the variables of Grafana.
func dashboardQueries(t *testing.T) (queries []string) {
	t.Helper()
	values := strings.NewReplacer("$__rate_interval", "5m", "$instance", "a", "$job", "lmosd")
	for _, d := range readDashboards(t) {
		for _, p := range d.Panels {
			for _, one := range p.Targets {
				queries = append(queries, values.Replace(one.Expr))
			}
		}
		for _, one := range d.Annotations.List {
			queries = append(queries, values.Replace(one.Expr))
		}
	}
	return queries
}

func TestDashboards(t *testing.T) {
	t.Parallel()
	uids := map[string]bool{}
	for file, d := range readDashboards(t) {
		if d.Title == "" || d.SchemaVersion < 39 || uids[d.UID] || len(d.Templating.List) != 3 || d.Templating.List[0].Type != "datasource" {
			t.Errorf("%s: title, schema version, uid or variables: %+v", file, d.Templating)
		}
		uids[d.UID] = true
		ids := map[int]bool{}
		for i, p := range d.Panels {
			if ids[p.ID] {
				t.Errorf("%s: two panels have the id %d", file, p.ID)
			}
			ids[p.ID] = true
			for _, q := range d.Panels[:i] {
				a, b := p.GridPos, q.GridPos
				if a.X+a.W > 24 || a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
					t.Errorf("%s: %q is over %q or over the edge", file, p.Title, q.Title)
				}
			}
			if p.Type == "row" {
				continue
			}
			if !strings.HasSuffix(p.Description, ".") || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
				t.Errorf("%s: %q needs a description, a unit, a query and the variable of the data source", file, p.Title)
			}
			for _, one := range p.Targets {
				if one.Datasource.UID != "${datasource}" || one.RefID == "" || !strings.Contains(one.Expr, `job="$job"`) || !strings.Contains(one.Expr, `instance=~"$instance"`) {
					t.Errorf("%s: %q: the query ignores a variable: %s", file, p.Title, one.Expr)
				}
			}
		}
	}
}

// Each alert has a severity, texts and a runbook that exists, and each warning of a node is the reason of an alert.
func TestAlerts(t *testing.T) {
	t.Parallel()
	tests, all := readFile(t, "configs/prometheus/alerts_test.yaml"), ""
	for _, g := range readAlerts(t).Groups {
		for _, r := range g.Rules {
			all += r.Expr + r.Annotations["runbook"] + "\n"
			if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) || r.Annotations["summary"] == "" || !strings.HasSuffix(r.Annotations["description"], ".") {
				t.Errorf("%s: severity, summary or description: %+v", r.Alert, r)
			}
			if !strings.Contains(tests, "- alertname: "+r.Alert+"\n") || !strings.Contains(tests, "{alertname: "+r.Alert+", eval_time: 2h, exp_alerts: []}") {
				t.Errorf("%s has no test", r.Alert)
			}
			switch kind, rest, _ := strings.Cut(r.Annotations["runbook"], " errors explain "); {
			case kind == "lmosd":
				code := strings.ReplaceAll(rest, "{{ $labels.code }}", "LMOS-W020")
				if got := lmosd(t.Context(), home(t), "", "errors", "explain", code); got.code != 0 {
					t.Errorf("%s: the runbook fails: %s", r.Alert, got.errors)
				}
			default:
				page, anchor, _ := strings.Cut(kind, "#")
				if !slices.ContainsFunc(strings.Split(readFile(t, page), "\n"), func(line string) bool {
					name, isHeading := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
					return isHeading && strings.HasPrefix(line, "#") && strings.ReplaceAll(strings.ToLower(name), " ", "-") == anchor
				}) {
					t.Errorf("%s: the runbook is missing: %s", r.Alert, kind)
				}
			}
		}
	}
	for _, k := range api.WarningKinds() {
		if k.Severity != "high" && !strings.Contains(all, k.Code) {
			t.Errorf("%s %s is the reason of no alert", k.Code, k.Title)
		}
	}
}

// checkQueries holds the metrics of the dashboards and alerts against those that nodes serve.
func checkQueries(t *testing.T, scraped string) {
	t.Helper()
	text := strings.Join(dashboardQueries(t), "\n")
	for _, g := range readAlerts(t).Groups {
		for _, r := range g.Rules {
			text += "\n" + r.Expr
		}
	}
	series := regexp.MustCompile(`(?m)^\w+`).FindAllString(scraped, -1)
	names := regexp.MustCompile(`\b(lmosd|libp2p|go|process)_\w+`).FindAllString(text, -1)
	if len(names) < 100 {
		t.Fatalf("read only %d names", len(names))
	}
	for _, name := range names {
		if !slices.Contains(series, name) {
			t.Errorf("no node serves %s, which a dashboard or an alert reads", name)
		}
	}
}

// promtool runs promtool of Prometheus.
func promtool(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testprogram.Path(t, "promtool"), args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// TestPromtool checks the rules, their tests, the example of a configuration and the queries of the dashboards with promtool.
func TestPromtool(t *testing.T) {
	t.Parallel()
	var rules strings.Builder
	rules.WriteString("groups: [{name: dashboards, rules: [\n")
	for _, q := range dashboardQueries(t) {
		b, err := json.Marshal(q)
		if err != nil {
			t.Fatal(err)
		}
		rules.WriteString("{record: query, expr: " + string(b) + "},\n")
	}
	rules.WriteString("]}]\n")
	queries := filepath.Join(t.TempDir(), "queries.yaml")
	if err := os.WriteFile(queries, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	const dir = "../../configs/prometheus/"
	for _, args := range [][]string{{"check", "rules", dir + "alerts.yaml"}, {"test", "rules", dir + "alerts_test.yaml"}, {"check", "config", dir + "prometheus.yml"}, {"check", "rules", "--lint=none", queries}} {
		if out, err := promtool(t, "", args...); err != nil || strings.Contains(out, "FAILED") {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// checkMetrics lets promtool check what nodes serve. The names of libp2p are not ours.
func checkMetrics(t *testing.T, scraped string) {
	t.Helper()
	out, _ := promtool(t, scraped, "check", "metrics") // it fails for the names of libp2p
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "libp2p_") {
			t.Errorf("promtool check metrics: %s", line)
		}
	}
}
