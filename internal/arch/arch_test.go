package arch

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/lmosd/lmosd"

// rows are the layers, from the bottom up: a package imports packages of lower rows only, and packages of one row never import each
// other.
var rows = [][]string{
	// Helpers that know no type of lmosd.
	{"interact/coap/coaptest", "internal/atomicfile", "internal/jcs", "internal/jsonedit", "internal/ratelimit", "internal/sdnotify", "internal/opaque", "internal/backoff", "internal/boundedmap", "internal/cbor", "internal/gcpace", "internal/heap", "internal/heartbeat", "internal/keylock", "internal/poll", "internal/liveheap", "internal/testmain", "internal/testprogram", "internal/tlstest", "internal/a2atest", "internal/netguard", "internal/pipenet", "internal/httpbody", "internal/sse", "internal/textmatch", "internal/yamltext", "internal/lazyregexp"},
	{"internal/netns", "telemetry/recentlog", "internal/buildinfo", "internal/confusable", "internal/storage", "internal/openai", "internal/weblocation", "testnet/simnet"}, // use internal/testprogram, lazyregexp, textmatch, atomicfile, ratelimit, backoff, httpbody
	{"did"},
	{"did/proof", "internal/streamserver"},
	// Key files, legacy documents, one DID method: below td, which signs with them. What TDs are made of.
	{"did/keystore"},
	{"did/didtest"},
	{"did/aries", "did/web", "did/webvh", "did/vc", "did/ucan", "did/rotation", "group/chain", "td/schema", "td/scheme"},
	{"td"},
	// The interaction model. TDs made from other documents. The parts of the directory that need descriptions only.
	{"interact", "td/openapi", "td/lmos", "td/querytext", "td/tdtest", "internal/testhost", "directory/index", "directory/embedding", "directory/fetch", "directory/lookalike", "directory/eviction", "directory/reachability", "directory/persist", "directory/directorytest", "policy/access", "p2p/relay", "p2p/noderecord", "p2p/oneport"},
	{"interact/credentials", "interact/interacttest", "interact/problem", "interact/choice", "directory/paging", "gateway/tokens", "policy/rules", "cmd/lmosd/internal/terminal"},
	// Credentials of foreign issuers, the own organization, its partners, the strings that invite others, and the protocol between organizations.
	{"trust/foreign", "trust/invitation", "trust/organization", "trust/partners", "trust/exchange", "gateway/oidc"},
	{"trust/authority", "gateway/sessions"}, // what is known of any organization: the rules of the own one hold for others
	// Messages and framing of single protocols, below their bindings and bridges. Organizations whose domain served their log: each has an authority.
	{"trust/proven", "interact/form", "interact/bindingtest", "interact/coap/messaging", "interact/stream/frame", "interact/ws/frame", "interact/mqtt/packet", "interact/oauth", "bridge/mcp/protocol"},
	// Carriers of records, the index, the policy, the bindings: one concern each.
	{"dht", "pubsub", "pubsub/reconcile", "pubsub/suspicion", "discovery/dnssd", "directory", "directory/route", "policy", "audit", "telemetry",
		"interact/task", "interact/hub", "interact/stream", "interact/rest", "interact/ws", "interact/mqtt", "interact/coap", "interact/command"},
	{"interact/rest/server", "bridge", "api", "publication"},                          // the server of the HTTP binding uses the client's package; the API has the types of the model
	{"bridge/a2a/protocol", "bridge/a2a/card", "bridge/bridgetest", "journal", "web"}, // web has the files of the console
	{"bridge/mcp/features"},
	{"bridge/a2a/v03", "bridge/a2a/executor", "bridge/a2a/push"},
	{"trust", "group", "policy/delegation", "gateway/tdd", "bridge/mcp/server", "bridge/mcp/backend", "bridge/a2a/server", "bridge/a2a/client"},
	{"bridge/mcp/aggregator", "bridge/mcp/client"},
	// What a node is made of: the HTTP server, the libp2p host, agents made from programs and documents, bridges.
	{"agent", "gateway", "p2p", "expose", "discovery/explore", "interact/servient", "bridge/mcp", "bridge/a2a"},
	{"directory/presence", "node/status", "node/datadir", "node/membership", "agent/agenttest"}, // use the libp2p host, the publications, agents
	{"node/topology"}, // maps the peers and the directory that the reporter of the status has
	{"node"},
	{"testnet", "configs", "interop/testmesh"},
	{"cmd/lmosd/internal/cli", "cmd/lmosd/internal/printer", "testnet/nat"}, // the last one starts processes as testnet does
	{"cmd/lmosd/internal/configcmd", "cmd/lmosd/internal/input", "cmd/lmosd/internal/help", "cmd/lmosd/internal/localnet",
		"cmd/lmosd/internal/mcpclients", "cmd/lmosd/internal/stdio", "cmd/lmosd/internal/errcatalog", "cmd/lmosd/internal/exposition"},
	{"cmd/lmosd/internal/prompt", "cmd/lmosd/internal/validate", "cmd/lmosd/internal/install", "cmd/lmosd/internal/keys", "cmd/lmosd/internal/login", "cmd/lmosd/internal/nodeaddr", "cmd/lmosd/internal/render", "cmd/lmosd/internal/scaffold", "cmd/lmosd/internal/verify"},
	{"cmd/lmosd/internal/auditcmd", "cmd/lmosd/internal/condition", "cmd/lmosd/internal/contextcmd", "cmd/lmosd/internal/runlog", "cmd/lmosd/internal/top", "cmd/lmosd/internal/service"}, // open the key of the node; print what nodes report
	{"cmd/lmosd", "examples/agents/go"},
}

// standalone are packages that import nothing of the house and are imported by few.
var standalone = map[string][]string{
	"examples/weather/agent":         {"examples/weather", "cmd/lmosd/internal/localnet", "testnet"}, // an agent without lmosd, run by the demo and by tests
	"examples/weather":               nil,
	"interop":                        nil, // tests only: programs of other projects
	"interop/avahi":                  nil, // tests only: the Avahi daemon
	"interop/conformance":            nil, // tests only: the conformance suite of MCP
	"interop/tdschema":               nil, // tests only: the official JSON Schema of TD 1.1
	"interop/conformance/taskserver": nil, // a program that the tests run: a server of MCP with tasks
	"sdk":                            {"cmd/lmosd/internal/scaffold"},
	"internal/arch":                  nil,
}

// forTests are packages that only tests, and each other, import.
var forTests = []string{"bridge/bridgetest", "interact/bindingtest", "interact/coap/coaptest", "interact/interacttest", "did/didtest", "internal/a2atest", "internal/liveheap", "internal/netns", "internal/pipenet", "internal/poll", "internal/testhost", "internal/testmain", "internal/testprogram", "internal/tlstest", "interop/testmesh", "td/tdtest"}

// sharedModules modules are the vocabulary that libp2p packages share: allowed in packages that handle peers and addresses.
var sharedModules = []string{
	"github.com/libp2p/go-libp2p/core", "github.com/multiformats/go-multiaddr", "github.com/multiformats/go-multihash",
	"github.com/ipfs/go-cid", "github.com/ipfs/go-datastore", "github.com/multiformats/go-multistream",
}

var sharedModulesFor = []string{"internal/storage", "internal/streamserver", "internal/testhost", "node", "node/status", "node/datadir", "p2p", "p2p/relay", "p2p/noderecord", "p2p/oneport", "dht", "pubsub", "pubsub/reconcile", "pubsub/suspicion", "directory", "directory/persist", "directory/presence", "interact/stream", "interact/task", "publication", "testnet", "testnet/simnet", "trust", "trust/exchange", "trust/invitation"}

// moduleHomes are the packages that may import a foreign module, by import path prefix; the longest prefix decides.
var moduleHomes = []struct {
	prefix string
	in     []string
	reason string
}{
	{"filippo.io/edwards25519", []string{"did"}, "weak keys are refused where keys are read"},
	{"filippo.io/age", []string{"did/keystore"}, "key files with a passphrase"},
	{"github.com/mr-tron/base58", []string{"did"}, "multibase encodes keys; other packages call did"},
	{"github.com/hyperledger/aries-framework-go", []string{"did/aries"}, "archived: isolated, removable by a build tag"},
	{"github.com/piprate/json-gold", []string{"did/aries"}, "the loader of the contexts that aries reads"},
	{"github.com/coreos/go-systemd/v22", []string{"internal/sdnotify"}, "the notify protocol of systemd"},
	{"github.com/google/renameio/v2", []string{"internal/atomicfile"}, "files are replaced in one way"},
	{"github.com/santhosh-tekuri/jsonschema/v6", []string{"td/schema"}, "the oracle of its tests; the program does not use it"},
	{"go.mau.fi/util", []string{"internal/confusable"}, "which characters look alike, by the table of Unicode"},
	{"github.com/klauspost/compress", []string{"td"}, "a TD inside its record"},
	{"golang.org/x/text", []string{"td", "internal/textmatch"}, "normal forms of capability ids and of words"},
	{"github.com/Masterminds/semver/v3", []string{"td"}, "ranges of versions"},
	{"github.com/fxamacker/cbor/v2", []string{"internal/cbor"}, "one strict configuration for all"},
	{"github.com/libp2p/go-libp2p-kad-dht", []string{"dht"}, "the Kademlia DHT"},
	{"github.com/libp2p/go-libp2p-kad-dht/pb", []string{"dht", "testnet"}, "messages of the DHT; the adversary of testnet forges them"},
	{"github.com/ipfs/go-log/v2", []string{"dht"}, "the log of the DHT's library"},
	{"go.uber.org/zap", []string{"dht"}, "records of that log"},
	{"github.com/libp2p/go-libp2p-kbucket", []string{"dht"}, "distances of keys"},
	{"github.com/libp2p/go-libp2p-record", []string{"dht", "testnet"}, "records of the DHT, true and forged"},
	{"github.com/libp2p/go-msgio", []string{"dht", "testnet"}, "frames of the DHT's own protocol"},
	{"google.golang.org/protobuf", []string{"dht", "telemetry"}, "messages of the DHT's own protocol, and of OTLP"},
	{"github.com/libp2p/go-libp2p-pubsub", []string{"pubsub"}, "gossipsub"},
	{"github.com/libp2p/go-libp2p/x/rate", []string{"dht", "p2p"}, "limits per address: of streams, of connections"},
	{"github.com/libp2p/go-libp2p/p2p/protocol/ping", []string{"interact/stream", "p2p", "p2p/relay"}, "liveness and latency of a host; its limits"},
	{"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2", []string{"p2p", "p2p/relay"}, "relays; the transport of circuits, and its limits"},
	{"github.com/libp2p/go-libp2p/p2p/host/eventbus", []string{"p2p", "p2p/noderecord", "p2p/relay", "testnet/simnet"}, "events of the host"},
	{"github.com/libp2p/go-libp2p/p2p/net/swarm", []string{"interact/stream", "p2p", "testnet/simnet"}, "the network of the host; its dial errors"},
	{"github.com/libp2p/go-libp2p/p2p/discovery/mdns", []string{"p2p"}, "nodes on the local network"},
	{"github.com/libp2p/go-libp2p/p2p/host", []string{"p2p", "testnet/simnet"}, "hosts of nodes and simulations"},
	{"github.com/libp2p/go-libp2p/p2p/net/connmgr", []string{"p2p", "testnet/simnet"}, "simulated hosts keep as many connections"},
	{"github.com/libp2p/go-libp2p/p2p/net/mock", []string{"internal/testhost"}, "simulated networks of tests"},
	{"github.com/libp2p/go-libp2p/p2p/transport/tcpreuse", []string{"p2p/oneport"}, "the first bytes of protocols on a shared port"},
	{"github.com/libp2p/go-libp2p", []string{"p2p", "internal/testhost"}, "the host is created in one place, from the parts it needs"},
	{"github.com/jackpal/go-nat-pmp", []string{"p2p"}, "ports of the router by NAT-PMP"},
	{"github.com/libp2p/go-netroute", []string{"p2p"}, "the router of this machine"},
	{"github.com/quic-go/quic-go", []string{"p2p"}, "keys and hooks of the QUIC sockets"},
	{"github.com/ipfs/go-ds-pebble", []string{"internal/storage"}, "storage engine"},
	{"github.com/cockroachdb/pebble/v2", []string{"internal/storage"}, "options of the storage engine"},
	{"github.com/gofrs/flock", []string{"internal/storage", "interact/oauth", "internal/atomicfile"}, "one process per data directory, and one writer of OAuth grants and of a file that is edited"},
	{"github.com/miekg/dns", []string{"discovery/dnssd", "p2p"}, "messages of multicast DNS; a name server of tests"},
	{"github.com/multiformats/go-multiaddr-dns", []string{"p2p"}, "TXT records of /dnsaddr names"},
	{"golang.org/x/net", []string{"discovery/dnssd"}, "multicast on each interface"},
	{"github.com/coder/websocket", []string{"interact/ws", "p2p/oneport"}, "WebSockets, of agents and of nodes"},
	{"github.com/a2aproject/a2a-go", []string{"internal/a2atest"}, "queues of the A2A servers that tests call"},
	{"github.com/eclipse/paho.golang", []string{"interact/mqtt"}, "MQTT 5"},
	{"github.com/eclipse/paho.mqtt.golang", []string{"interact/mqtt"}, "MQTT 3.1.1"},
	{"github.com/mochi-mqtt/server/v2", []string{"interact/mqtt"}, "the embedded broker"},
	{"github.com/plgd-dev/go-coap/v3", []string{"interact/coap", "interact/coap/messaging"}, "CoAP"},
	{"github.com/pion/dtls/v3", []string{"interact/coap/messaging"}, "CoAP over DTLS"},
	{"go.yaml.in/yaml/v3", []string{"td/openapi"}, "YAML of OpenAPI documents, of any size: its work is linear, and its nodes are counted before they are decoded"},
	{"github.com/modelcontextprotocol/go-sdk", []string{"bridge/mcp/backend", "bridge/mcp/client", "bridge/mcp"},
		"clients and servers of MCP, in tests: production code forwards messages verbatim; and OAuth metadata documents"},
	{"golang.org/x/oauth2", []string{"interact/oauth", "bridge/mcp/client"}, "tokens and authorization URLs"},
	{"github.com/yosida95/uritemplate/v3", []string{"bridge/mcp"}, "addresses of MCP resources (RFC 6570)"},
	{"go.uber.org/goleak", []string{"bridge/bridgetest", "interact/bindingtest", "internal/testmain"}, "packages for tests: goroutines that outlive a test"},
	{"github.com/google/jsonschema-go", []string{"bridge/mcp/backend", "bridge/mcp"}, "schemas of the go-sdk's servers, in tests"},
	{"go.opentelemetry.io/otel", []string{"telemetry"}, "spans"},
	{"go.opentelemetry.io/proto/otlp", []string{"telemetry"}, "messages of OTLP; its collector packages bring gRPC along"},
	{"golang.org/x/sync", []string{"dht", "directory", "directory/directorytest", "interact/rest", "interact/rest/server", "interact/stream", "interact/mqtt", "interact/servient", "gateway", "publication", "p2p", "node", "testnet", "testnet/nat"}, "goroutines that are waited for"},
	{"github.com/theory/jsonpath", []string{"gateway/tdd"}, "queries in JSONPath, RFC 9535"},
	{"github.com/antchfx/xpath", []string{"gateway/tdd"}, "queries in XPath"},
	{"github.com/prometheus/client_golang", []string{"gateway", "p2p"}, "metrics; libp2p adds its own"},
	{"github.com/prometheus", []string{"cmd/lmosd/internal/exposition"}, "the text format of metrics"},
	{"github.com/goccy/go-yaml", []string{"internal/yamltext", "configs", "policy/access"}, "configuration files and access rules"},
	{"github.com/go-jose/go-jose/v3", []string{"gateway/oidc"}, "tokens and keys of identity providers"},
	{"github.com/cedar-policy/cedar-go", []string{"policy/access"}, "conditions of access rules"},
	{"github.com/spf13/cobra", []string{"cmd/lmosd", "cmd/lmosd/internal/cli", "cmd/lmosd/internal/configcmd",
		"cmd/lmosd/internal/help", "cmd/lmosd/internal/localnet", "cmd/lmosd/internal/errcatalog", "cmd/lmosd/internal/validate",
		"cmd/lmosd/internal/install", "cmd/lmosd/internal/keys", "cmd/lmosd/internal/login", "cmd/lmosd/internal/service", "cmd/lmosd/internal/auditcmd", "cmd/lmosd/internal/contextcmd", "cmd/lmosd/internal/scaffold"}, "commands"},
	{"github.com/spf13/pflag", []string{"cmd/lmosd", "cmd/lmosd/internal/cli", "cmd/lmosd/internal/configcmd", "cmd/lmosd/internal/help"}, "flags"},
	{"github.com/itchyny/gojq", []string{"cmd/lmosd/internal/cli"}, "--jq"},
	{"golang.org/x/sys", []string{"cmd/lmosd/internal/terminal", "testnet/nat"}, "the width of a terminal; network namespaces and TUN devices"},
	{"github.com/mattn/go-isatty", []string{"cmd/lmosd/internal/terminal"}, "is it a terminal"},
	{"github.com/mattn/go-runewidth", []string{"cmd/lmosd/internal/terminal"}, "columns of wide letters"},
}

// An edge is one import statement.
type edge struct {
	file, from, to string
	test           bool
}

func TestImportsFollowThePlan(t *testing.T) {
	t.Parallel()
	edges := imports(t, "../..")
	if len(edges) < 100 {
		t.Fatalf("read only %d import statements: the walk is broken", len(edges))
	}
	for _, e := range edges {
		if why := violation(e); why != "" {
			t.Errorf("%s: %s", e.file, why)
		}
	}
}

func TestEveryPackageHasARow(t *testing.T) {
	t.Parallel()
	have := map[string]bool{}
	used := map[string]bool{}
	for _, e := range imports(t, "../..") {
		have[e.from] = true
		if h := home(e.to); h >= 0 {
			used[moduleHomes[h].prefix] = true
		}
	}
	for _, p := range append(slices.Concat(rows...), slices.Collect(maps.Keys(standalone))...) {
		if !have[p] && p != "internal/arch" {
			t.Errorf("the plan names the missing package %s", p)
		}
	}
	for _, h := range moduleHomes {
		if !used[h.prefix] {
			t.Errorf("the plan gives a home to %s, which no package imports", h.prefix)
		}
	}
}

func TestForbiddenImports(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]edge{
		"a higher row":               {from: "did", to: module + "/td"},
		"the same row":               {from: "dht", to: module + "/pubsub"},
		"an unknown package":         {from: "did/pigeon", to: "fmt"},
		"aries away from home":       {from: "td", to: "github.com/hyperledger/aries-framework-go/pkg/doc/did"},
		"a module without home":      {from: "td", to: "github.com/stretchr/testify"},
		"libp2p in an upper row":     {from: "gateway", to: "github.com/libp2p/go-libp2p/core/peer"},
		"a test module in code":      {from: "td", to: "pgregory.net/rapid"},
		"an internal helper upwards": {from: "internal/jcs", to: module + "/did"},
		"a test package":             {from: "node", to: module + "/bridge/bridgetest"},
	} {
		if violation(e) == "" {
			t.Errorf("%s: %s may import %s, want it refused", name, e.from, e.to)
		}
	}
}

// violation returns the rule that an import violates, or "".
func violation(e edge) string {
	if strings.HasPrefix(e.to, module+"/") {
		return ownViolation(e, strings.TrimPrefix(e.to, module+"/"))
	}
	if !strings.Contains(strings.SplitN(e.to, "/", 2)[0], ".") {
		if row(e.from) < 0 && !known(e.from) {
			return fmt.Sprintf("package %s has no place in the plan", e.from)
		}
		return "" // the standard library
	}
	return foreignViolation(e)
}

func known(pkg string) bool { _, ok := standalone[pkg]; return ok }

func ownViolation(e edge, to string) string {
	if by, ok := standalone[to]; ok {
		if slices.Contains(by, e.from) || e.test {
			return ""
		}
		return fmt.Sprintf("%s is imported by %v only", to, by)
	}
	from, target := row(e.from), row(to)
	switch {
	case slices.Contains(forTests, to) && !e.test && !slices.Contains(forTests, e.from):
		return fmt.Sprintf("%s is imported by tests only", to)
	case e.test && e.from == to: // a test of the package from outside
		return ""
	case known(e.from) && e.test:
		return ""
	case from < 0 || target < 0:
		return fmt.Sprintf("%s or %s has no place in the plan", e.from, to)
	case e.test && target <= from:
		return "" // a test may import the same row
	case target >= from:
		return fmt.Sprintf("%s may not import %s: it is not on a lower row", e.from, to)
	}
	return ""
}

func foreignViolation(e edge) string {
	if e.test {
		return "" // tests may use real hosts and oracles
	}
	if h := home(e.to); h >= 0 && longer(moduleHomes[h].prefix, e.to) {
		if slices.Contains(moduleHomes[h].in, e.from) {
			return ""
		}
		return fmt.Sprintf("%s may not import %s: its home is %v", e.from, e.to, moduleHomes[h].in)
	}
	for _, f := range sharedModules {
		if under(e.to, f) {
			if slices.Contains(sharedModulesFor, e.from) {
				return ""
			}
			return fmt.Sprintf("%s may not import libp2p (%s)", e.from, e.to)
		}
	}
	return fmt.Sprintf("%s imports %s, which has no home: add a row with its reason", e.from, e.to)
}

// longer reports whether the prefix of the home is longer than each free prefix of path.
func longer(prefix, path string) bool {
	for _, f := range sharedModules {
		if under(path, f) && len(f) > len(prefix) {
			return false
		}
	}
	return true
}

// home returns the index of the home with the longest prefix of path, or -1.
func home(path string) int {
	best := -1
	for i, h := range moduleHomes {
		if under(path, h.prefix) && (best < 0 || len(h.prefix) > len(moduleHomes[best].prefix)) {
			best = i
		}
	}
	return best
}

func under(path, prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }

func row(pkg string) int {
	return slices.IndexFunc(rows, func(r []string) bool { return slices.Contains(r, pkg) })
}

// isElsewhere reports whether a folder below root is not the house: test data, libraries of others, hidden files, and modules of their own
// (bench, web/e2e).
func isElsewhere(root, folder string) bool {
	if folder == root {
		return false
	}
	name := filepath.Base(folder)
	_, err := os.Stat(filepath.Join(folder, "go.mod"))
	return err == nil || name == "testdata" || name == "node_modules" || strings.HasPrefix(name, ".")
}

// imports reads every import statement below root. Modules of their own (bench) and test data are not the house.
func imports(t *testing.T, root string) []edge {
	t.Helper()
	var edges []edge
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); name == "deps" || isElsewhere(root, path) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, i := range f.Imports {
			to, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			edges = append(edges, edge{file: path, from: filepath.ToSlash(rel), to: to, test: strings.HasSuffix(path, "_test.go")})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return edges
}
