package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge"
	bridgemcp "github.com/lmosd/lmosd/bridge/mcp"
	"github.com/lmosd/lmosd/expose"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/td"
)

// The servers of manyTable: one per subject, with one tool per deed.
var (
	subjects = strings.Fields(`invoice calendar weather forecast repository ticket customer shipment warehouse recipe flight hotel train
		currency stock portfolio payment refund contract lease patent trademark newsletter podcast playlist photo video caption
		transcript translation dictionary glossary thesaurus citation paper dataset spreadsheet slide diagram whiteboard notebook
		experiment sample reagent genome protein molecule telescope satellite orbit sensor thermostat lamp shutter alarm camera
		doorbell vehicle charger battery turbine meter pipeline valve pump robot drone printer scanner badge visitor parking
		meeting room desk timesheet payroll candidate interview training certificate survey ballot petition donation volunteer
		grant budget audit incident runbook deployment cluster container database queue cache firewall
		domain mailbox`)
	deeds = []struct{ verb, says string }{
		{"create", "Creates a new %s and returns its number. Asks for nothing that can be derived from the account."},
		{"get", "Returns one %s with all of its fields, by its number."},
		{"list", "Lists every %s of the account, newest first, with a cursor for the next page."},
		{"search", "Finds each %s whose title or notes have the given words; the best matches come first."},
		{"update", "Changes the given fields of the %s and leaves the others as they are."},
		{"delete", "Deletes the %s for good. It cannot be restored afterwards."},
		{"archive", "Moves the %s out of the active lists; it can be found again by search."},
		{"restore", "Brings an archived %s back to where it was."},
		{"share", "Gives another person access to the %s, to read or to write."},
		{"revoke", "Revokes the access of a person to the %s."},
		{"comment", "Adds a comment to the %s, in Markdown, and notifies its followers."},
		{"follow", "Sends a notification whenever the %s changes, until it is unfollowed."},
		{"export", "Writes the %s as a PDF, CSV or JSON document and returns a link to it."},
		{"import", "Reads a %s from a document of one of the supported formats."},
		{"duplicate", "Makes a copy of the %s under another title."},
		{"compare", "Shows what differs between two versions of the %s, field by field."},
		{"approve", "Marks the %s as approved by the caller, with an optional note."},
		{"schedule", "Plans a date at which the %s is to be worked on, in RFC 3339."},
		{"summarize", "Writes a short summary of the %s and of its recent changes in plain language."},
		{"statistics", "Counts and sums over each %s of a period, by day, week or month."},
	}
)

// manyTable measures a node that knows many MCP servers of another: lists, searches, and the cost of each idle server. Servers, their node,
// and the called node are separate processes.
func manyTable(ctx context.Context, p plan) error {
	servers, stopServers, err := child(ctx, "many-servers")
	if err != nil {
		return err
	}
	defer stopServers()
	host, stopHost, err := started(ctx, "many-host="+servers)
	if err != nil {
		return err
	}
	defer stopHost()
	far, stopFar, err := started(ctx, "many-consumer="+host.At)
	if err != nil {
		return err
	}
	defer stopFar()
	n := len(subjects)
	p.say("%d MCP servers (Go SDK, over HTTP) with %d tools each.", n, len(deeds))
	p.table("without calls | heap and stacks | RSS | goroutines | descriptors")
	host.print(p, "each server at its node", n)
	far.print(p, "each server at the other node, all pinned at /mcp", n)
	return manyCalls(ctx, p, far.At+"/mcp")
}

// manyCalls measures the requests of a client to the node that knows the servers.
func manyCalls(ctx context.Context, p plan, url string) error {
	s, closeSession, err := mcpSession(ctx, url)
	if err != nil {
		return err
	}
	defer closeSession()
	p.table("at the other node | p50 | p99")
	for _, m := range calledOfMany {
		var f []figure
		for range p.rounds {
			one, err := measure(ctx, func() (caller, error) {
				return caller{close: func() {}, call: func(ctx context.Context) error { return m.call(ctx, url, s) }}, nil
			}, 1, p.length)
			if err != nil {
				return fmt.Errorf("%s: %w", m.what, err)
			}
			f = append(f, one)
		}
		median := results{"": {1: f}}.of("", 1)
		p.row("%s | %.2f ms | %.2f ms", m.what, ms(median.p50), ms(median.p99))
		if m.most > 0 {
			p.atMost("p50 of "+m.what, ms(median.p50), m.most, " ms")
		}
	}
	return nil
}

var calledOfMany = []struct {
	what string
	most float64 // milliseconds; 0: no goal
	call func(context.Context, string, *mcp.ClientSession) error
}{
	{"tools/list, a page of 1,000", 20, pageOf},
	{"the same, read by the client of the Go SDK", 0, func(ctx context.Context, _ string, s *mcp.ClientSession) error {
		r, err := s.ListTools(ctx, nil)
		if err == nil && (len(r.Tools) != 1000 || r.NextCursor == "") {
			err = fmt.Errorf("received %d tools", len(r.Tools))
		}
		return err
	}},
	{"mesh_search, two words", 5, searching(func() string { return pick(deeds).verb + " " + pick(subjects) })},
	{"mesh_search, a sentence", 5, searching(func() string {
		return "I want to " + pick(deeds).verb + " the latest " + pick(subjects) + " for a colleague"
	})},
	{"mesh_search, words with typos", 5, searching(func() string { return misspelt(pick(subjects)) + " " + misspelt(pick(deeds).verb) })},
	{"mesh_search, words of all servers", 5, searching(func() string { return "newest first with a cursor for the next page" })},
	{"mesh_describe", 0, func(ctx context.Context, _ string, s *mcp.ClientSession) error {
		return tool(ctx, s, "mesh_describe", map[string]any{"thing": pick(subjects)})
	}},
}

// pageOf requests the first page of all tools, and reads its bytes.
func pageOf(ctx context.Context, url string, _ *mcp.ClientSession) error {
	const question = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{` +
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(question))
	if err != nil {
		return err
	}
	for name, value := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"} {
		r.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && (res.StatusCode != http.StatusOK || bytes.Count(b, []byte(`"inputSchema"`)) != 1000) {
		err = fmt.Errorf("%s: %.200s", res.Status, b)
	}
	return err
}

func pick[T any](of []T) T { return of[rand.IntN(len(of))] }

// misspelt swaps two letters.
func misspelt(word string) string {
	if len(word) < 5 {
		return word
	}
	i := 1 + rand.IntN(len(word)-3)
	return word[:i] + word[i+1:i+2] + word[i:i+1] + word[i+2:]
}

func searching(question func() string) func(context.Context, string, *mcp.ClientSession) error {
	return func(ctx context.Context, _ string, s *mcp.ClientSession) error {
		return tool(ctx, s, "mesh_search", map[string]any{"query": question()})
	}
}

func tool(ctx context.Context, s *mcp.ClientSession, name string, arguments map[string]any) error {
	r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: arguments})
	switch {
	case err != nil:
		return err
	case r.IsError || len(r.Content) != 1 || strings.Contains(r.Content[0].(*mcp.TextContent).Text, `"results":[]`):
		return fmt.Errorf("%s of %v gives %v", name, arguments, r.Content)
	}
	return nil
}

// A cost is the usage of a process before and after a change.
type cost struct {
	At            string // the address of the process
	Before, After footprint
}

type footprint struct {
	Memory                       float64 // bytes of heap and stacks
	RSS, Goroutines, Descriptors int     // RSS in bytes
}

// print prints the cost of each of n items.
func (c cost) print(p plan, what string, n int) {
	b, a, all := c.Before, c.After, float64(n)
	p.row("%s | %.1f KiB | %.1f KiB | %.1f | %.2f", what, (a.Memory-b.Memory)/all/1024, float64(a.RSS-b.RSS)/all/1024,
		float64(a.Goroutines-b.Goroutines)/all, float64(a.Descriptors-b.Descriptors)/all)
}

// footprintNow returns the usage of this process after a collection.
func footprintNow() footprint {
	m := measured()
	f := footprint{Memory: m.memory(), Goroutines: m.Goroutines, RSS: rss("self")}
	open, _ := os.ReadDir("/proc/self/fd")
	f.Descriptors = len(open)
	return f
}

// started runs a child that reports its cost.
func started(ctx context.Context, role string) (c cost, stop func(), err error) {
	line, stop, err := child(ctx, role)
	if err != nil {
		return cost{}, nil, err
	}
	if err := json.Unmarshal([]byte(line), &c); err != nil {
		stop()
		return cost{}, nil, err
	}
	return c, stop, nil
}

// settle waits until the background work has ended.
const settle = 3 * time.Second

// say prints the cost of the process, and waits for its end.
func (c *cost) say(ctx context.Context) error {
	time.Sleep(settle)
	c.After = footprintNow()
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	fmt.Println(string(line))
	<-ctx.Done()
	return nil
}

// inputOfMany is the input schema of a tool. %s is its subject.
const inputOfMany = `{"type":"object","properties":{"number":{"type":"string","description":"the number of the %s"},
"fields":{"type":"array","items":{"type":"string"}},"limit":{"type":"integer","minimum":1,"maximum":100,"default":20},
"notes":{"type":"string","maxLength":4000}},"required":["number"]}`

// serveManyServers runs the servers, each at its own path.
func serveManyServers(ctx context.Context, _ string) error {
	mux := http.NewServeMux()
	for _, subject := range subjects {
		server := mcp.NewServer(&mcp.Implementation{Name: subject, Version: "1"}, nil)
		for _, d := range deeds {
			input := fmt.Appendf(nil, inputOfMany, subject)
			server.AddTool(&mcp.Tool{Name: d.verb + "_" + subject, Description: fmt.Sprintf(d.says, subject), InputSchema: json.RawMessage(input)},
				func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
					return &mcp.CallToolResult{}, nil
				})
		}
		mux.Handle("/"+subject, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	}
	return serveHTTP(ctx, func(string) http.Handler { return mux })
}

// serveManyHost runs a node that publishes the servers at url.
func serveManyHost(ctx context.Context, url string) error {
	o := options("tcp")
	o.Bridges = bridges()
	n, stop, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer stop()
	c := cost{At: n.Addrs()[0], Before: footprintNow()}
	for _, subject := range subjects {
		x, err := expose.Open(ctx, expose.Spec{Target: "mcp:" + url + "/" + subject}, o.Bridges, nil)
		if err != nil {
			return err
		}
		defer x.Close()
		draft, err := td.Draft(x.TD)
		if err != nil {
			return err
		}
		if _, err := n.Offer(ctx, draft, x.Thing); err != nil {
			return err
		}
		if x.Changes != nil {
			next, end := context.WithCancel(ctx)
			defer end()
			go func() {
				for range x.Changes(next) { // watches for changes that do not occur
				}
			}()
		}
	}
	return c.say(ctx)
}

// serveManyConsumer runs a node that gets all servers from the one at addr, and pins them.
func serveManyConsumer(ctx context.Context, addr string) error {
	o := options("tcp")
	o.HTTP = &node.HTTP{Listen: "127.0.0.1:0", Explicit: true, NoAuth: true}
	o.Bridges = []bridge.Bridge{bridgemcp.New(bridgemcp.Options{Pins: slices.Clone(subjects)})}
	n, stop, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer stop()
	c := cost{At: n.API(), Before: footprintNow()}
	if err := n.Client().Connect(ctx, addr); err != nil {
		return err
	}
	err = until(ctx, 30*time.Second, func(context.Context) error {
		known := 0
		for range n.Known() {
			known++
		}
		if known != len(subjects) {
			return fmt.Errorf("%d servers were found", known)
		}
		return nil
	})
	if err != nil {
		return err
	}
	s, end, err := mcpSession(ctx, n.API()+"/mcp")
	if err != nil {
		return err
	}
	if _, err := s.ListTools(ctx, nil); err != nil { // pinned features are created on first use
		return err
	}
	end()
	return c.say(ctx)
}
