package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// unreachable returns why the database at url does not answer, or "" if it does.
func unreachable(url string) string {
	if strings.HasPrefix(url, "file:") {
		return ""
	}
	client := &http.Client{Timeout: 20 * time.Second}
	resp, err := client.Get(url + "/index/db.json")
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return resp.Status
	}
	return ""
}

// scan has govulncheck look at dir, and returns what it finds that is called and not excepted.
func scan(program, db, dir string, except exceptions) ([]string, error) {
	c := exec.Command(program, "-db", db, "-format", "json", "./...")
	c.Dir = dir
	var complaint bytes.Buffer
	c.Stderr = &complaint
	out, err := c.Output() // with json, findings are no failure
	if err != nil {
		return nil, fmt.Errorf("govulncheck in %s: %w: %s", dir, err, complaint.Bytes())
	}
	called, err := calledOf(bytes.NewReader(out))
	if err != nil {
		return nil, fmt.Errorf("what govulncheck said of %s: %w", dir, err)
	}
	var problems []string
	for _, id := range called {
		if _, ok := except[id]; !ok {
			problems = append(problems, fmt.Sprintf("%s: govulncheck: %s is called; see https://pkg.go.dev/vuln/%s", dir, id, id))
		}
	}
	fmt.Printf("govulncheck in %s: %d called, %d of them not excepted\n", dir, len(called), len(problems))
	return problems, nil
}

// calledOf returns the ids of the findings whose vulnerable function is called, each once.
func calledOf(stream io.Reader) (ids []string, err error) {
	d := json.NewDecoder(stream)
	for {
		var m struct {
			Finding *struct {
				OSV   string
				Trace []struct{ Function string }
			}
		}
		switch err := d.Decode(&m); {
		case errors.Is(err, io.EOF):
			slices.Sort(ids)
			return slices.Compact(ids), nil
		case err != nil:
			return nil, err
		}
		if f := m.Finding; f != nil && len(f.Trace) > 0 && f.Trace[0].Function != "" {
			ids = append(ids, f.OSV)
		}
	}
}
