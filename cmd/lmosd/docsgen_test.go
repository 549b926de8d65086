package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/td/scheme"
)

// A generated part of a page stands between two comments; the first names the generator and its arguments:
//
//	<!-- generated: keys interact. trust.rate. -->
//	…
//	<!-- end -->
var generatedPart = regexp.MustCompile(`(?s)(<!-- generated: (\w+)([^\n]*) -->\n).*?(<!-- end -->)`)

// generators return the generated parts of pages.
var generators = map[string]func(args []string) string{"keys": keysTable, "profiles": func([]string) string { return profilesTable() },
	"reloadable": reloadableTable}

// TestGeneratedDocumentation compares the generated parts of the pages with the code; -update rewrites them.
func TestGeneratedDocumentation(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		old, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		now := generatedPart.ReplaceAllFunc(old, func(part []byte) []byte {
			m := generatedPart.FindSubmatch(part)
			if string(m[2]) == "packages" {
				return part // internal/arch generates it
			}
			generate, args := generators[string(m[2])], strings.Fields(string(m[3]))
			if generate == nil {
				t.Fatalf("%s: no generator %s", page, m[2])
			}
			found[string(m[2])] = true
			return slices.Concat(m[1], []byte("\n"+generate(args)+"\n"), m[4])
		})
		switch {
		case string(now) == string(old):
		case *update:
			if err := os.WriteFile(page, now, 0o644); err != nil {
				t.Fatal(err)
			}
		default:
			t.Errorf("%s is not what the code says: go test ./cmd/lmosd -run TestGeneratedDocumentation -update", page)
		}
	}
	if len(found) != len(generators) {
		t.Errorf("the pages have the generated parts %v, want one of each", found)
	}
}

// keysTable lists the keys that begin with one of prefixes.
func keysTable(prefixes []string) string {
	var b strings.Builder
	b.WriteString("| key | default | what it does |\n|---|---|---|\n")
	for _, k := range configs.Keys() {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(k.Name, p) }) {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", k.Name, code(k.Default), strings.ReplaceAll(k.Doc, "|", `\|`))
		}
	}
	return b.String()
}

// reloadableTable lists the keys that a running node applies.
func reloadableTable([]string) string {
	var b strings.Builder
	b.WriteString("\n| key | what it does |\n|---|---|\n")
	for _, k := range configs.Keys() {
		if k.Reloadable() {
			fmt.Fprintf(&b, "| `%s` | %s |\n", k.Name, strings.ReplaceAll(k.Doc, "|", `\|`))
		}
	}
	return b.String() + "\n"
}

func code(value string) string {
	if value = strings.Trim(value, `"`); value == "" || value == "[]" {
		return "–"
	}
	return "`" + value + "`"
}

// profilesTable lists what each profile changes.
func profilesTable() string {
	var b strings.Builder
	b.WriteString("| profile | keys | what no key decides |\n|---|---|---|\n")
	for _, p := range configs.Profiles() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", p.Name, cmp.Or(changes(p), "–"), cmp.Or(traits(p.Traits), "–"))
	}
	return b.String()
}

func changes(p configs.Profile) string {
	var list []string
	for _, k := range p.Keys {
		list = append(list, fmt.Sprintf("`%s: %s`", k[0], strings.Join(k[1:], ", ")))
	}
	return strings.Join(list, ", ")
}

// traits describes the differences of t to the traits of the profile default.
func traits(t configs.Traits) string {
	usual := (&configs.Config{Profile: "default"}).Traits()
	var list []string
	for _, x := range []struct {
		differs bool
		text    string
	}{
		{t.Diversity != usual.Diversity, "the routing table is spread over networks"},
		{t.Relay != usual.Relay, "no relays and no hole punching"},
		{t.PrivateRelays != usual.PrivateRelays, "relays may have private addresses"},
		{t.AutoNAT != usual.AutoNAT, "peers are not asked which addresses they reach (AutoNAT)"},
		{t.PortMap != usual.PortMap, "the router is not asked for a port mapping"},
		{t.ConnsPerIP != usual.ConnsPerIP || t.ConnRate != usual.ConnRate, fmt.Sprintf("%d connections of an IP address, %g new ones a second, in place of %d and %g", t.ConnsPerIP, t.ConnRate, usual.ConnsPerIP, usual.ConnRate)},
		{t.GossipDegree != usual.GossipDegree, fmt.Sprintf("%d neighbours a gossip topic in place of %d", t.GossipDegree, usual.GossipDegree)},
		{t.Loopback != usual.Loopback, "127.0.0.1 is not dialled"},
		{t.Internet != usual.Internet, "private addresses are not dialled; a dial may take 5 s in place of 2 s; the router is always asked for a port mapping"},
		{t.NoNoise != usual.NoNoise, "TLS only over TCP, without Noise"},
	} {
		if x.differs {
			list = append(list, x.text)
		}
	}
	return strings.Join(list, "; ")
}

// TestPagesListTheProtocols: the sample output of lmosd validate lists the protocols of the bindings.
func TestPagesListTheProtocols(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/agents.md")
	if err != nil {
		t.Fatal(err)
	}
	if text := "an address that a node can ask: " + scheme.Protocols() + ", or"; !strings.Contains(string(page), text) {
		t.Errorf("docs/agents.md has no line with %q", text)
	}
}
