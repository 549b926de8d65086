package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/configs"
)

// A claim is a statement of a page about a default or a limit, with its source: a piece of a file, or a configuration key with its default.
// Both change together.
type claim struct {
	page, says string
	file, code string // file is empty for a key: "key: default"
}

// claims has an entry for each line of the pages that [claimed] matches.
var claims = []claim{
	{"docs/api.md", "each 5 s, of `?window=` (15 min at most)", "journal/samples.go", "Window = 15 * time.Minute"},
	{"docs/api.md", "equivocations are compared each 5 s", "journal/samples.go", "Step = 5 * time.Second"},
	{"docs/api.md", "its origin (`default`, `file`, `env`, `flag` or `profile`)", "configs/load.go", `name := "default"`},
	{"docs/api.md", "of 2,000 that are kept (at most 1 MB)", "telemetry/recentlog/recentlog.go", "MaxBytes   = 1 << 20"},
	{"docs/api.md", "the checks of the node (`pass`, `warn`, `fail` or `skip`), within 5 s", "gateway/doctor.go", "doctorTime   = 5 * time.Second"},
	{"docs/api.md", "`/v1/topology` takes `scope` (`mine`, the default", "gateway/topology.go", `cmp.Or(v.Get("scope"), string(api.TopologyMine))`},
	{"docs/api.md", "them for 2.5 s at most", "node/topology/ask.go", "roundTime = 2500 * time.Millisecond"},
	{"docs/api.md", "JSON of more than 1 kB is compressed", "gateway/tdd/gzip.go", "minCompressed = 1 << 10"},
	{"docs/operations.md", "keeps its newest 2,000 records, at most 1 MB", "telemetry/recentlog/recentlog.go", "MaxRecords = 2000"},
	{"docs/watching.md", "at most one line in 10 s", "publication/liveness.go", "failurePause = 10 * time.Second"},
	{"docs/watching.md", "(1 minute unless", "cmd/lmosd/wait.go", "= time.Minute"},
	{"docs/api.md", "for 3 s at most: `status`", "gateway/ledger.go", "= 3 * time.Second // in all"},
	{"docs/api.md", "at most 32 KiB, to the other members", "api/groups.go", "MaxGroupEvent = 32 << 10"},
	{"docs/api.md", "They wait 400 ms for it", "directory/presence/presence.go", "= 400 * time.Millisecond"},
	{"docs/api.md", "every ten seconds at most. They wait 400 ms", "directory/presence/presence.go", "requestPause    = 10 * time.Second"},
	{"docs/api.md", "may have 4 KiB, run for 5 s and for 20 million steps", "gateway/tdd/budget.go", "maxQuery   = 4 << 10"},
	{"docs/api.md", "run for 5 s", "gateway/tdd/tdd.go", "cmp.Or(max(o.QueryTime, 0), 5*time.Second)"},
	{"docs/api.md", "20 million steps", "gateway/tdd/budget.go", "maxSteps   = 20e6"},
	{"docs/api.md", "XPath, of 32 MiB of TDs", "gateway/tdd/budget.go", "maxWhole   = 32 << 20"},
	{"docs/api.md", "a TD 128 KiB", "td/td.go", "MaxTD          = 128 << 10"},
	{"docs/api.md", "other bodies 4 MiB", "interact/rest/client.go", "MaxBody = 4 << 20"},
	{"docs/api.md", "headers 64 KiB", "gateway/gateway.go", "maxHeader  = 64 << 10"},
	{"docs/api.md", "Headers have 5 s to arrive, a body a minute", "gateway/gateway.go", "timeouts{header: 5 * time.Second, body: time.Minute, write: 30 * time.Second"},
	{"docs/api.md", "of an answer in 30 s", "gateway/gateway.go", "write: 30 * time.Second"},
	{"docs/api.md", "30 s by default", "", "interact.timeout: 30s"},
	{"docs/api.md", "8 s at most. Streams of", "gateway/gateway.go", "drain: 8 * time.Second"},
	{"docs/api.md", "A comment comes every 15 s", "interact/rest/server/serve.go", "keepAlive: 15 * time.Second"},
	{"docs/api.md", "That goes on for 24 h", "interact/rest/server/serve.go", "lease: 24 * time.Hour"},
	{"docs/api.md", "text forms has at most 16 KiB", "interact/message.go", "const MaxCapability = 16 << 10"},
	{"docs/observability.md", "within twice its interval and 30 s", "internal/heartbeat/heartbeat.go", "slack = 30 * time.Second"},
	{"docs/federation.md", "1 second to 30 days, 10 minutes by default", "did/ucan/ucan.go", "MaxDelegation = 30 * 24 * time.Hour"},
	{"docs/federation.md", "30 days, 10 minutes by default", "cmd/lmosd/delegate.go", `"for", 10*time.Minute`},
	{"docs/federation.md", "at most 16 conditions on the input", "policy/delegation/delegation.go", "maxWhere     = 16"},
	{"docs/federation.md", "at most 4,096 delegations", "policy/delegation/delegation.go", "maxIssued    = 4096"},
	{"docs/federation.md", "256 of them of one delegating node", "policy/delegation/delegation.go", "maxPerLender = 256"},
	{"docs/federation.md", "a node lends at most 1,024", "policy/delegation/delegation.go", "maxLent      = 1024"},
	{"docs/federation.md", "at most 16 KiB (", "interact/message.go", "const MaxCapability = 16 << 10"},
	{"docs/agents.md", "at most 128 KiB", "td/td.go", "MaxTD          = 128 << 10"},
	{"docs/agents.md", "else bytes; 4 MiB at most", "interact/command/command.go", "maxOutput     = 4 << 20"},
	{"docs/agents.md", "after 15 s the agent is withdrawn", "publication/attached.go", "const Grace = 15 * time.Second"},
	{"docs/agents.md", "running calls have 8 s to finish", "interact/ws/attach.go", "const attachedDrain = 8 * time.Second"},
	{"docs/agents.md", "passed on as text, up to 4 KiB", "interact/rest/answer.go", "const maxText = 4 << 10"},
	{"docs/agents.md", "24 KiB for one tool", "bridge/mcp/describe.go", "maxAffordance = 24 << 10"},
	{"docs/agents.md", "when the record expires (24 hours)", "", "mesh.dht.ttl: 24h"},
	{"docs/agents.md", "receives SIGTERM and, 2 s later, SIGKILL", "interact/command/command.go", "grace = 2 * time.Second"},
	{"docs/agents.md", "1 MiB) cannot use this WebSocket", "cmd/lmosd/call.go", "const streamFrom = 1 << 20"},
	{"docs/agents.md", "files above 1 MiB and standard input are streamed", "cmd/lmosd/call.go", "const streamFrom = 1 << 20"},
	{"docs/agents.md", "described again 8 times, then every 5 s", "bridge/mcp/listen.go", "ratelimit.Every(8, 5*time.Second)"},
	{"docs/agents.md", "a new token 30 s before the old one expires", "interact/oauth/oauth.go", "early = 30 * time.Second"},
	{"docs/agents.md", "stops using deleted tokens within 2 s", "bridge/mcp/client/login.go", "reloadInterval = 2 * time.Second"},
	{"docs/agents.md", "its result is stored for 10 minutes", "", "interact.tasks.retention: 10m"},
	{"docs/agents.md", "signs the description and, every 12 hours", "api/ownkey.go", "OwnGrantLife = 24 * time.Hour"},
	{"docs/agents.md", "its grant ends after 7 days", "td/grant.go", "GrantLife   = 7 * 24 * time.Hour"},
	{"docs/agents.md", "lead to the new one for 30 days", "cmd/lmosd/keyssucceed.go", "succeededFor = 30 * 24 * time.Hour"},
	{"docs/agents.md", "announce a move for 30 days", "publication/publication.go", "movedLifetime     = 30 * 24 * time.Hour"},
	{"docs/operations.md", "again every 15 minutes while tokens arrive", "gateway/oidc/verifier.go", "keyLife = 15 * time.Minute"},
	{"docs/operations.md", "at most once in 5", "gateway/oidc/verifier.go", "minPause = 5 * time.Second"},
	{"docs/operations.md", "are accepted for 24 hours; others", "gateway/oidc/verifier.go", "maxAge = 24 * time.Hour"},
	{"docs/operations.md", "60 s of difference between the clocks", "gateway/oidc/claims.go", "maxSkew = time.Minute"},
	{"docs/sdk.md", "for 15 seconds; in that time", "publication/attached.go", "const Grace = 15 * time.Second"},
	{"docs/sdk.md", "ones have 8 s to finish", "sdk/python/lmosd/__init__.py", "def stop(self, wait: float = 8)"},
	{"docs/sdk.md", "A call waits 30 seconds", "sdk/js/lmosd.mjs", "timeout = 30,"},
	{"docs/sdk.md", "More than 16 MiB at once", "interact/ws/requeststream.go", "maxCredit  = 16 << 20"},
	{"docs/sdk.md", "The libraries grant 256 KiB", "interact/ws/requeststream.go", "window     = 256 << 10"},
	{"docs/sdk.md", "A message has at most 4 MiB", "interact/ws/ws.go", "defaultMessage       = 4 << 20"},
	{"docs/architecture.md", "until 10 minutes after its", "interact/task/runner.go", "cmp.Or(max(o.Keep, 0), 10*time.Minute)"},
	{"docs/architecture.md", "at most 8 KiB, with owner", "td/td.go", "MaxRecord      = 8 << 10"},
	{"docs/architecture.md", "control frame 64 KiB, chunk 1 MiB", "interact/stream/frame/frame.go", "MaxControl = 64 << 10"},
	{"docs/architecture.md", "chunk 1 MiB", "interact/stream/frame/frame.go", "MaxChunk   = 1 << 20"},
	{"docs/architecture.md", "inbound frame 64 KiB, reply 256 KiB", "dht/framelimit.go", "maxInbound = 64 << 10"},
	{"docs/architecture.md", "reply 256 KiB", "dht/reply.go", "maxReply     = 256 << 10"},
	{"docs/architecture.md", "message 64 KiB", "pubsub/settings.go", "maxMessage = 64 << 10"},
	{"docs/architecture.md", "request 16 KiB, reply frame 160 KiB", "dht/wire.go", "maxRecordsRequest  = 16 << 10"},
	{"docs/architecture.md", "reply frame 160 KiB", "dht/wire.go", "maxRecordsResponse = 160 << 10"},
	{"docs/architecture.md", "message 256 KiB", "pubsub/reconcile/wire.go", "maxRoundSize     = 256 << 10"},
	{"docs/architecture.md", "32 MiB per session", "pubsub/reconcile/session.go", "maxReceivedBytes = 32 << 20"},
	{"docs/architecture.md", "64 hosts, 2 kB", "pubsub/suspicion/wire.go", "maxHosts   = 64"},
	{"docs/operations.md", "ones have 8 s to finish", "node/options.go", "const drainFor = 8 * time.Second"},
	{"docs/operations.md", "15 s of the start is withdrawn", "publication/attached.go", "const Grace = 15 * time.Second"},
	{"docs/operations.md", "If a default port is in use, the node takes a free port", "gateway/gateway.go", "Otherwise New uses a free port."},
	{"docs/operations.md", "which is on by default", "", "mesh.mdns: true"},
	{"docs/operations.md", "at once and every 10 minutes. The results", "discovery/explore/discoveries.go", "visitInterval       = 10 * time.Minute"},
	{"docs/operations.md", "10 minutes. The results are discovered Things", "discovery/explore/discoveries.go", "visitInterval       = 10 * time.Minute"},
	{"docs/operations.md", "its reports are ignored for 10 minutes", "pubsub/suspicion/peers.go", "banTime      = 10 * time.Minute"},
	{"docs/configuration.md", "A later source wins: default, profile, file", "configs/doc.go", "A later layer overrides an earlier one: default, profile, file,"},
	{"docs/operations.md", "1 MiB/s; three forged ones ban it for 10 minutes", "pubsub/ratelimit.go", "byteRate      = 1 << 20"},
	{"docs/operations.md", "asks again for 2 s at most", "interact/stream/pace.go", "maxCrowded = 2 * time.Second"},
	{"docs/operations.md", "under 16 MiB of disk are free", "internal/storage/storage.go", "MinFree   = 16 << 20"},
	{"docs/operations.md", "more than 5 minutes off the median of three or more peers", "node/status/clock.go", "skewRefuse = 5 * time.Minute"},
	{"docs/operations.md", "else within 5 minutes", "directory/reachability/probe.go", "probeLast    = 5 * time.Minute"},
	{"docs/observability.md", "is retried for 20 seconds", "telemetry/telemetry.go", "retryTimeout  = 20 * time.Second"},
	{"docs/operations.md", "of up to 64 MiB each", "audit/audit.go", "maxFile     = 64 << 20"},
	{"docs/operations.md", "(128 at once), and 4 lines per second", "audit/window.go", "Burst: 128, Rate: 1}, total: ratelimit.Limit{Burst: 4096, Rate: 4}"},
	{"docs/operations.md", "15 MB an hour: 10 files hold the denials of 44 hours", "audit/window.go", "are 15 MB an hour: 10 files hold the denials of 44 hours"},
	{"docs/operations.md", "every 1,000 lines or 60 s", "audit/audit.go", "signLines     = 1000"},
	{"docs/operations.md", "1,000 lines or 60 s", "audit/audit.go", "signEvery     = time.Minute"},
	{"docs/operations.md", "on the disk after at most 2 s", "audit/audit.go", "flushEvery    = time.Second"},
	{"docs/operations.md", "4,096 lines wait", "audit/forward.go", "forwardQueue  = 4096"},
	{"docs/interop.md", "every `a2a.card_refresh` (1 min)", "", "a2a.card_refresh: 1m"},
	{"docs/interop.md", "an hour after they have ended, 2,000 at most", "bridge/a2a/executor/executor.go", "cmp.Or(o.Keep, time.Hour)"},
	{"docs/interop.md", "2,000 at most; one caller may have 100 that run", "bridge/a2a/executor/executor.go", "cmp.Or(o.MaxTasks, 2000), cmp.Or(o.MaxRunning, 100)"},
	{"docs/interop.md", "20,000 contexts", "bridge/owners.go", "const maxOwners = 20_000"},
	{"docs/interop.md", "Of 500 tasks with webhooks, each with 8 at most", "bridge/a2a/push/push.go", "cmp.Or(o.MaxTasks, 500), cmp.Or(o.MaxConfigs, 8)"},
	{"docs/interop.md", "A delivery is tried five times", "bridge/a2a/push/push.go", "cmp.Or(o.Tries, 5)"},
	{"docs/interop.md", "a webhook that takes nothing of five", "bridge/a2a/push/push.go", "cmp.Or(o.MaxFailed, 5)"},
	{"docs/interop.md", "In a card they have 64 KiB together", "bridge/a2a/describe.go", "const maxSchemas = 64 << 10"},
	{"docs/interop.md", "`outputSchema` beyond 64 KiB", "bridge/a2a/describe.go", "const maxSchemas = 64 << 10"},
	{"docs/interop.md", "those of more than 512 KiB come", "bridge/a2a/executor/message.go", "const maxPart = 512 << 10"},
	{"docs/operations.md", "`push notification dropped`, `webhook removed`", "bridge/a2a/push/subscription.go", `Warn("push notification dropped"`},
	{"docs/operations.md", "`the card is signed with an unknown key`", "bridge/a2a/card/sign.go", `"the card is signed with an unknown key"`},
	{"docs/operations.md", "By default, any peer that reaches it finds the public agents", "", "trust.untrusted: find"},
	{"docs/operations.md", "The first run in the profiles `default`, `lan` and `lean` makes an organization", "cmd/lmosd/run.go", `[]string{"default", "lan", "lean"}`},
	{"docs/operations.md", "for partners: 30 minutes and 64 MiB a connection", "p2p/relay/relay.go", "Long:  {30 * time.Minute, 64 << 20}"},
	{"docs/operations.md", "in the profile `public`: 2 minutes and 128 KiB", "p2p/relay/relay.go", "Short: {2 * time.Minute, 128 << 10}"},
	{"docs/operations.md", "a limit of 16 GiB in 24 hours, of which", "p2p/relay/service.go", "cmp.Or(o.Daily, 16<<30), cmp.Or(o.DailyOfOne, 2<<30)"},
	{"docs/operations.md", "waits up to 2 seconds for a direct connection", "interact/stream/stream.go", "or(o.DirectWait, 2*time.Second)"},
	{"docs/operations.md", "pings the relay every 3", "p2p/relay/reservations.go", "pingEvery   = 3 * time.Second"},
	{"docs/operations.md", "is not dialed again for 5 minutes", "p2p/gater.go", "othersFor = 5 * time.Minute"},
	{"docs/operations.md", "sends nothing for 5 seconds is disconnected. Of one address 32 such", "p2p/oneport/oneport.go", "maxPerAddress = 32"},
	{"docs/operations.md", "if TCP fails or takes 700 ms", "p2p/fallback.go", "fallbackAfter = 700 * time.Millisecond"},
	{"docs/operations.md", "at the start, every 10 minutes, and again soon after a failure", "p2p/dnsaddr.go", "nameInterval = 10 * time.Minute"},
	{"docs/operations.md", "saved every 5 minutes and at the stop", "p2p/bootstrap.go", "snapshotInterval = 5 * time.Minute"},
	{"docs/operations.md", "known and none is connected for 30 seconds", "p2p/organizations.go", "aloneFirst = 30 * time.Second"},
	{"docs/operations.md", "of which none is connected for 30 seconds", "p2p/organizations.go", "aloneFirst = 30 * time.Second"},
	{"docs/operations.md", "prints an invitation for 1 hour and 3 nodes", "cmd/lmosd/run.go", "homeInvitationUses = 3"},
	{"docs/operations.md", "warn 2 days before. Put the", "publication/hosted.go", "GrantWarning = 2 * 24 * time.Hour"},
	{"docs/operations.md", "ends within 2 days or has ended", "publication/hosted.go", "GrantWarning = 2 * 24 * time.Hour"},
	{"docs/operations.md", "days at most; each of these nodes", "td/grant.go", "GrantLife = 7 * 24 * time.Hour"},
	{"docs/operations.md", "waits up to 45 s for an issuer", "cmd/lmosd/internal/keys/rotate.go", "confirmWait  = 45 * time.Second"},
	{"docs/operations.md", "those of the new one for 30 days", "publication/publication.go", "movedLifetime     = 30 * 24 * time.Hour"},
	{"docs/operations.md", "revokes the old key within 30 s", "cmd/lmosd/internal/keys/rotate.go", "completeWait = 30 * time.Second"},
	{"docs/operations.md", "replaced once in 24 hours", "trust/organization/replace.go", "ReplacePause = 24 * time.Hour"},
	{"docs/api.md", "at most 20. `trust` is `own` (default)", "gateway/choose.go", "maxChosen = 20"},
	{"docs/agents.md", "was not measured in the last 10 minutes", "interact/choice/meter.go", "measuredFor = 10 * time.Minute"},
	{"docs/agents.md", "is called last for 10 seconds after three of its calls in 10 seconds", "interact/choice/meter.go", "openFor     = 10 * time.Second"},
	{"docs/agents.md", "if 10 of its last 20 calls failed", "interact/choice/meter.go", "window      = 20"},
	{"docs/operations.md", "Nodes in `default` and `lan` ask the router", "configs/profiles.go", "defaultTraits = Traits{ConnsPerIP: 64, ConnRate: 5, GossipDegree: 5, Loopback: true, Relay: true, AutoNAT: true, PortMap: true}"},
	{"README.md", "**Closed by default**", "", "trust.untrusted: find"},
	{"README.md", "listens on all interfaces", "configs/config.go", `"/ip4/0.0.0.0/udp/4667/quic-v1"`},
}

// claimed matches what a page claims in numbers, or as a default. unclaimed is what it matches besides.
var (
	claimed   = regexp.MustCompile(`(?i)\bdefaults?\b|\b[0-9][0-9,]* (s|ms|min|minutes|seconds|hours|h|MiB|KiB|kB|MB|days)\b`)
	unclaimed = regexp.MustCompile(`default request|differences to|changes of the default|^✓|steps passed|make build|^\| (elicitation-|auth/)`)
)

// TestClaims holds the numbers and defaults that the pages name against the code, and finds those that nothing holds.
func TestClaims(t *testing.T) {
	t.Parallel()
	keys := map[string]string{}
	for _, k := range configs.Keys() {
		keys[k.Name] = strings.Trim(k.Default, `"`)
	}
	for _, c := range claims {
		if !strings.Contains(readFile(t, c.page), c.says) {
			t.Errorf("%s does not say %q any more", c.page, c.says)
		}
		if key, value, _ := strings.Cut(c.code, ": "); c.file == "" && keys[key] != value {
			t.Errorf("%s says %q; the default of %s is %q", c.page, c.says, key, keys[key])
		} else if c.file != "" && !strings.Contains(oneSpace(readFile(t, c.file)), oneSpace(c.code)) {
			t.Errorf("%s says %q; %s has no %q", c.page, c.says, c.file, c.code)
		}
	}
	for _, page := range []string{"README.md", "docs/api.md", "docs/agents.md", "docs/sdk.md", "docs/architecture.md", "docs/operations.md", "docs/observability.md", "docs/interop.md", "docs/install.md"} {
		for _, line := range prose(t, page) {
			if claimed.MatchString(line) && !unclaimed.MatchString(line) && !slices.ContainsFunc(claims, func(c claim) bool {
				return c.page == page && strings.Contains(line, c.says)
			}) {
				t.Errorf("%s: no entry of claims holds %q", page, line)
			}
		}
	}
}

// oneSpace replaces runs of spaces by one, so that the alignment of constants may change.
func oneSpace(text string) string { return regexp.MustCompile(` +`).ReplaceAllString(text, " ") }

// prose returns the lines of a page outside of code and generated parts.
func prose(t *testing.T, page string) (lines []string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", page))
	if err != nil {
		t.Fatal(err)
	}
	fenced := false
	for line := range strings.Lines(string(generatedPart.ReplaceAll(b, nil))) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		} else if !fenced {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	return lines
}
