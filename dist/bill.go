package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"
)

// A document is a bill of materials: CycloneDX 1.6, JSON.
type document struct {
	Schema       string       `json:"$schema"`
	Format       string       `json:"bomFormat"`
	SpecVersion  string       `json:"specVersion"`
	Serial       string       `json:"serialNumber"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

type component struct {
	Ref        string            `json:"bom-ref"`
	Type       string            `json:"type"`
	Name       string            `json:"name"`
	Version    string            `json:"version"`
	Hashes     []hash            `json:"hashes,omitempty"`
	Licenses   []json.RawMessage `json:"licenses,omitempty"`
	URL        string            `json:"purl"`
	Properties []property        `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

// packageURL returns the package URL of a Go module (purl-spec, "golang").
func packageURL(path, version string) string {
	return "pkg:golang/" + strings.ReplaceAll(url.PathEscape(path), "%2F", "/") + "@" + url.QueryEscape(version)
}

// bill writes the bill of materials of a program, from what the Go linker recorded in it.
func (r *release) bill(p platform, path string) error {
	info, err := buildinfo.ReadFile(p.binary)
	if err != nil {
		return err
	}
	list, err := modules(p.binary)
	if err != nil {
		return err
	}
	sum, err := sumOf(p.binary)
	if err != nil {
		return err
	}
	id := sha256.Sum256([]byte("lmosd " + p.String() + " " + sum))
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // RFC 9562, version 8: the same program has the same number
	root := component{Type: "application", Name: "lmosd", Version: r.version, URL: packageURL(info.Main.Path, "v"+r.version) + "?goos=" + p.os + "&goarch=" + p.arch,
		Hashes: []hash{{"SHA-256", sum}}, Licenses: []json.RawMessage{json.RawMessage(`{"license":{"id":"Apache-2.0"}}`)}}
	root.Ref = root.URL
	d := document{Schema: "http://cyclonedx.org/schema/bom-1.6.schema.json", Format: "CycloneDX", SpecVersion: "1.6", Version: 1,
		Serial:   fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:16]),
		Metadata: metadata{Timestamp: r.date.Format(time.RFC3339), Component: root}}
	add := func(name, version, sum string) {
		c := component{Type: "library", Name: name, Version: version, URL: packageURL(name, version)}
		if c.Ref = c.URL; sum != "" {
			c.Properties = []property{{"go:sum", sum}}
		}
		d.Components = append(d.Components, c)
	}
	add("std", strings.TrimPrefix(info.GoVersion, "go"), "")
	for _, m := range list {
		add(m.Path, m.Version, m.Sum)
	}
	of := dependency{Ref: root.Ref}
	for _, c := range d.Components {
		of.DependsOn = append(of.DependsOn, c.Ref)
	}
	d.Dependencies = []dependency{of}
	b, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
