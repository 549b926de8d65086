package main

import (
	"bytes"
	"encoding/json"
	"fmt"
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
	}
	for name, want := range map[string]string{"FROM": "scratch", "USER": "65532:65532", "ENTRYPOINT": `["lmosd"]`, "VOLUME": `["/var/lib/lmosd"]`} {
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

// TestCompose reads the file of two organizations.
func TestCompose(t *testing.T) {
	t.Parallel()
	type service struct {
		Image          string
		Command        []string
		Volumes, Ports []string
		DependsOn      map[string]struct{ Condition string } `yaml:"depends_on"`
		Network        string                                `yaml:"network_mode"`
		ReadOnly       bool                                  `yaml:"read_only"`
		Drop           []string                              `yaml:"cap_drop"`
		Build          struct{ Context string }
	}
	var file struct {
		Services map[string]service
		Volumes  map[string]any
	}
	if err := yaml.Unmarshal([]byte(readFile(t, "configs/docker/compose.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	ports := map[string]string{}
	for name, s := range file.Services {
		if s.Image != "lmosd" || s.Build.Context != "../.." || !s.ReadOnly || !slices.Equal(s.Drop, []string{"ALL"}) {
			t.Errorf("%s does not run the image without privileges: %+v", name, s)
		}
		if err := checkCommand(s.Command); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, v := range s.Volumes {
			volume, folder, _ := strings.Cut(v, ":")
			if _, ok := file.Volumes[volume]; !ok || folder != "/var/lib/lmosd" {
				t.Errorf("%s has the volume %s", name, v)
			}
		}
		for _, p := range s.Ports {
			host, _, _ := strings.Cut(p, ":")
			host += p[strings.LastIndex(p, "/"):]
			if other := ports[host]; other != "" {
				t.Errorf("%s and %s share the port %s", name, other, host)
			}
			ports[host] = name
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
