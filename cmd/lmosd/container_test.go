package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// checkCommand finds the command and the flags of a container in the tree of commands.
func checkCommand(args []string) error {
	cmd, rest, err := newTree(&bytes.Buffer{}).Find(args)
	if err != nil || !cmd.HasParent() {
		return fmt.Errorf("no command %v: %v", args, err)
	}
	if cmd.DisableFlagParsing { // the agent of the demo has flags of its own
		return nil
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

// TestDockerfile reads each line of the Dockerfile; CI builds it, too, where a builder runs.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	text := strings.ReplaceAll(readFile(t, "Dockerfile"), "\\\n", " ")
	known := strings.Fields("FROM WORKDIR COPY RUN ARG ENV USER VOLUME EXPOSE HEALTHCHECK ENTRYPOINT CMD")
	last := map[string]string{}
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "" || name == "#" {
			continue
		}
		if !slices.Contains(known, name) {
			t.Errorf("unknown instruction %q", line)
		}
		last[name] = rest
		if folder := rest[strings.LastIndex(rest, " ")+1:]; name == "COPY" && strings.Trim(folder, "/") == "var/lib/lmosd" {
			t.Errorf("%s: the mode of the data folder is lost, because COPY keeps the modes of what is in the copied folder only", line)
		}
	}
	// A file that a command makes, such as a recovery file, is in the volume: nothing else can be written to.
	for name, want := range map[string]string{"WORKDIR": "/var/lib/lmosd", "FROM": "scratch", "USER": "65532:65532", "ENTRYPOINT": `["lmosd"]`, "VOLUME": `["/var/lib/lmosd"]`} {
		if last[name] != want {
			t.Errorf("%s is %s, want %s", name, last[name], want)
		}
	}
	if module := readFile(t, "go.mod"); !strings.Contains(module, "\ngo 1.26") || !strings.Contains(text, "FROM golang:1.26 AS build\n") {
		t.Error("the image is built with another version of Go than the module")
	}
	_, health, _ := strings.Cut(last["HEALTHCHECK"], "CMD ")
	for _, list := range []string{health, `["lmosd",` + strings.TrimPrefix(last["CMD"], "[")} {
		var args []string
		if err := json.Unmarshal([]byte(list), &args); err != nil || args[0] != "lmosd" {
			t.Fatalf("%s: %v", list, err)
		}
		if err := checkCommand(args[1:]); err != nil {
			t.Error(err)
		}
	}
}

// A composeService is a service of the compose file, as far as it is tested.
type composeService struct {
	Image          string
	Command        []string
	Volumes, Ports []string
	DependsOn      map[string]struct{ Condition string } `yaml:"depends_on"`
	Network        string                                `yaml:"network_mode"`
	ReadOnly       bool                                  `yaml:"read_only"`
	Drop           []string                              `yaml:"cap_drop"`
	Security       []string                              `yaml:"security_opt"`
	Build          struct{ Context string }
}

// file returns the file of this repository that the service mounts at path, or "".
func (s composeService) file(path string) string {
	for _, v := range s.Volumes {
		if source, target, _ := strings.Cut(v, ":"); target == path+":ro" {
			return filepath.Join("configs/docker", source)
		}
	}
	return ""
}

// readCompose reads the file of two organizations.
func readCompose(t *testing.T) (file struct {
	Services map[string]composeService
	Volumes  map[string]any
}) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(readFile(t, "configs/docker/compose.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestCompose checks the services of the compose file. TestStepsOfTheComposeFile runs the steps of its page.
func TestCompose(t *testing.T) {
	t.Parallel()
	file := readCompose(t)
	ports := map[string]string{}
	for name, s := range file.Services {
		if !slices.Equal(s.Drop, []string{"ALL"}) || !slices.Equal(s.Security, []string{"no-new-privileges:true"}) {
			t.Errorf("%s has privileges: %+v", name, s)
		}
		own := s.Image == "lmosd"
		if own {
			if s.Build.Context != "../.." || !s.ReadOnly {
				t.Errorf("%s does not run the image: %+v", name, s)
			}
			if err := checkCommand(s.Command); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		} else if _, version, _ := strings.Cut(s.Image, ":"); version == "" || version == "latest" {
			t.Errorf("%s: the image %s has no version", name, s.Image)
		}
		for _, v := range s.Volumes {
			source, target, _ := strings.Cut(v, ":")
			if strings.HasPrefix(source, ".") {
				if _, err := os.Stat(filepath.Join("../../configs/docker", source)); err != nil || !strings.HasSuffix(target, ":ro") {
					t.Errorf("%s mounts %s: %v", name, v, err)
				}
				continue
			}
			if _, ok := file.Volumes[source]; !ok || own != (target == "/var/lib/lmosd") {
				t.Errorf("%s has the volume %s", name, v)
			}
		}
		for _, p := range s.Ports {
			published, kind, ok := strings.Cut(p, "/")
			if !ok {
				t.Fatalf("%s: the port %s has no protocol", name, p)
			}
			parts := strings.Split(published, ":")
			host := parts[len(parts)-2] + "/" + kind
			if other := ports[host]; other != "" {
				t.Errorf("%s and %s share the port %s", name, other, host)
			}
			if ports[host] = name; !own && parts[0] != "127.0.0.1" {
				t.Errorf("other hosts reach %s at %s without a password", name, p)
			}
		}
		others := []string{}
		for other := range s.DependsOn {
			others = append(others, other)
		}
		if of, ok := strings.CutPrefix(s.Network, "service:"); ok {
			others = append(others, of)
		}
		for _, other := range others {
			if _, ok := file.Services[other]; !ok {
				t.Errorf("%s needs the service %s, which is not there", name, other)
			}
		}
	}
	for _, name := range []string{"acme", "globex"} {
		if s := file.Services[name]; len(s.Command) == 0 || s.Command[0] != "run" || len(s.Ports) != 2 {
			t.Errorf("%s is not a node: %+v", name, s)
		}
	}
	if file.Services["acme"].Volumes[0] == file.Services["globex"].Volumes[0] {
		t.Error("both organizations have one data folder")
	}
}

// TestComposeMetrics: each organization has a Prometheus in the network of its node; Grafana reads both, and has the dashboards.
func TestComposeMetrics(t *testing.T) {
	t.Parallel()
	file := readCompose(t)
	grafana := file.Services["grafana"]
	var sources struct {
		Version     int `yaml:"apiVersion"`
		Datasources []struct {
			Name, UID, Type, URL, Access string
			Default                      bool `yaml:"isDefault"`
		}
	}
	var dashboards struct {
		Version   int `yaml:"apiVersion"`
		Providers []struct {
			Name, Type, Folder string
			Options            struct{ Path string }
		}
	}
	for path, v := range map[string]any{"/etc/grafana/provisioning/datasources/lmosd.yaml": &sources, "/etc/grafana/provisioning/dashboards/lmosd.yaml": &dashboards} {
		if err := yaml.UnmarshalWithOptions([]byte(readFile(t, grafana.file(path))), v, yaml.Strict()); err != nil { // Grafana ignores a misspelled name
			t.Fatal(err)
		}
	}
	if sources.Version != 1 || dashboards.Version != 1 || len(sources.Datasources) != 2 || len(dashboards.Providers) != 1 {
		t.Fatalf("sources %+v, dashboards %+v", sources, dashboards)
	}
	if p := dashboards.Providers[0]; p.Type != "file" || grafana.file(p.Options.Path) != "configs/grafana" {
		t.Errorf("the provider %+v does not read configs/grafana", p)
	}
	for _, source := range sources.Datasources {
		node, isProxied := strings.CutSuffix(strings.TrimPrefix(source.URL, "http://"), ":9090")
		prometheus := file.Services[node+"-metrics"]
		if source.Type != "prometheus" || source.Access != "proxy" || !isProxied || prometheus.Network != "service:"+node || source.UID != node {
			t.Errorf("%+v is not the Prometheus of a node: %+v", source, prometheus)
			continue
		}
		// The files are beside each other in the container.
		dir := t.TempDir()
		for _, name := range []string{"prometheus.yml", "alerts.yaml"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(readFile(t, prometheus.file("/etc/prometheus/"+name))), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := promtool(t, "", "check", "config", filepath.Join(dir, "prometheus.yml")); err != nil || !strings.Contains(out, "rules found") {
			t.Errorf("%s: %v\n%s", node, err, out)
		}
	}
	if text := readFile(t, "configs/docker/prometheus.yml"); !strings.Contains(text, `"127.0.0.1:4668"`) || !strings.Contains(text, "job_name: lmosd ") {
		t.Error("Prometheus does not read the API of the node that has its network, as the job that the alerts name")
	}
}

// TestStepsOfTheComposeFile runs the steps of docs/install.md that follow the start of the containers, on two nodes with the settings of the
// compose file: the first organization calls the agent of the second one.
func TestStepsOfTheComposeFile(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	nodes := map[string]*nodeProcess{"acme": x.node("acme"), "globex": x.node("globex")}
	x.at(nodes["acme"]).ok("peers", "connect", nodes["globex"].P2P[0]) // by mDNS in the containers
	x.at(nodes["globex"]).ok("publish", x.weather())
	_, page, _ := strings.Cut(readFile(t, "docs/install.md"), "exec globex lmosd'\n")
	page, _, _ = strings.Cut(page, "```")
	invitation, answer, confirmed := "", "", false
	for line := range strings.Lines(page) {
		line, _, _ = strings.Cut(line, "   #")
		words := strings.Fields(strings.ReplaceAll(line, "lmos-invite:…", invitation))
		at := x.at(nodes[words[0]])
		if words[1] == "call" { // refused before the rule is there, and what one node confirms reaches the other one later
			eventually(t, line, func() bool { answer = at.lmosd(words[1:]...).out; return strings.Contains(answer, "°C") })
			continue
		}
		out := at.ok(words[1:]...)
		if strings.HasPrefix(out, "lmos-invite:") {
			invitation = strings.TrimSpace(out)
		}
		confirmed = confirmed || words[2] == "confirm"
	}
	if invitation == "" || !confirmed || answer == "" {
		t.Errorf("the page has no invitation, no confirmation or no call:\n%s", page)
	}
}
