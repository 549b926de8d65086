package configs

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/lmosd/lmosd/audit"
	"github.com/lmosd/lmosd/directory/route"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/task"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/rules"
	"github.com/lmosd/lmosd/telemetry"
)

// Options returns the node options of c. The caller sets Options.OpenKey, because a passphrase may be needed.
func (c *Config) Options() (node.Options, error) {
	t := c.Traits()
	o := node.Options{
		Dir: c.Node.DataDir, Engine: c.engine(), Name: c.Node.Name, Profile: c.Profile, Network: c.Mesh.Network,
		Listen: c.Listen.P2P, ListenExplicit: c.Explicit("listen.p2p") || c.sharesPort(), Web: c.web(), Filter: c.Mesh.Filter, Announce: c.Listen.Announce, NoAnnounce: c.Listen.NoAnnounce,
		Bootstrap: c.Mesh.Bootstrap, MDNS: c.Mesh.MDNS, Introductions: c.Mesh.Introductions, Loopback: t.Loopback, Internet: t.Internet,
		PublicOnly: !c.Listen.Private, NoNoise: t.NoNoise, GossipDegree: t.GossipDegree,
		NAT:     p2p.NAT{Relay: t.Relay, Serve: c.Mesh.Relay, PrivateRelays: t.PrivateRelays, AutoNAT: t.AutoNAT, PortMap: t.PortMap && (t.Internet || p2p.LeadOutside(c.Mesh.Bootstrap))},
		DHTMode: c.Mesh.DHT.Mode, Diversity: t.Diversity, Lifetime: time.Duration(c.Mesh.DHT.TTL),
		Limits: p2p.Limits{PeersLow: c.Mesh.Limits.Peers.Low, PeersHigh: c.Mesh.Limits.Peers.High, Streams: c.Mesh.Limits.StreamsPerPeer,
			Memory: int64(c.Mesh.Limits.Memory), PerAddress: t.ConnsPerIP, PerAddressRate: t.ConnRate},
		MaxThings: c.Directory.MaxThings, Ranges: p2p.Ranges{IPv4: c.Directory.IPv4Range, IPv6: c.Directory.IPv6Range}, Index: c.Directory.Index, Policy: c.rules(), Audit: c.Audit(), Timeout: time.Duration(c.Interact.Timeout), Credentials: c.CredentialsFile(),
		HTTP: &node.HTTP{Listen: c.HTTP.Listen, Explicit: c.Explicit("http.listen"), Socket: c.Socket(), NoAuth: c.HTTP.Auth == "none",
			CertFile: c.HTTP.TLS.Cert, KeyFile: c.HTTP.TLS.Key, Proxy: c.HTTP.TLS.Mode == "proxy",
			Operation: gateway.Operation{HideMetrics: !c.Telemetry.Metrics, Hosts: c.HTTP.Hosts, Origins: c.HTTP.Origins, PublicURL: c.HTTP.PublicURL,
				OpenDirectory: c.HTTP.DirectoryAuth == "open", Config: c.Items, AuditDir: c.AuditDir(), NoConsole: !c.HTTP.Console, LinksFor: c.Mesh.Topology}},
		OIDC: c.HTTP.OIDC, NoValidation: !c.Interact.Validate, Direct: c.Interact.Direct, MQTT: c.MQTT.Listen, CoAP: c.CoAP.Listen,
		Search:    route.Search{Method: route.Method(c.Search.Method)},
		Tasks:     task.Options{MaxRun: time.Duration(c.Interact.Tasks.MaxDuration), Keep: time.Duration(c.Interact.Tasks.Retention)},
		Telemetry: telemetry.Options{Endpoint: c.Telemetry.Traces.Endpoint, Sample: share(c.Telemetry.Traces.Percent)},
	}
	var err error
	if o.Search.Embeddings, err = c.endpoint("search.embeddings", c.Search.Embeddings); err != nil {
		return o, err
	}
	if o.Search.Model, err = c.endpoint("search.model", c.Search.Model); err != nil {
		return o, err
	}
	return o, nil
}

// sharesPort reports whether the API is served on a TCP port of the mesh.
func (c *Config) sharesPort() bool {
	shared, _ := p2p.SharesPort(c.Listen.P2P, c.HTTP.Listen) // check has reported the error
	return shared
}

// web returns what else the TCP ports of the mesh serve.
func (c *Config) web() (w p2p.Web) {
	if c.sharesPort() {
		w.Listen = c.HTTP.Listen
	}
	if t := c.HTTP.TLS; t.Cert != "" {
		w.Certificate = func(log *slog.Logger) (*tls.Config, error) {
			if c.HTTP.Listen != "" {
				log = slog.New(slog.DiscardHandler) // the API reads the files, too, and logs that
			}
			return gateway.TLS(t.Cert, t.Key, log)
		}
	}
	return w
}

// Audit returns the options of the audit log, without the signer and the logger of the node.
func (c *Config) Audit() audit.Options {
	target, _ := audit.ParseTarget(c.Trust.Audit.Forward) // check has parsed it
	return audit.Options{Dir: c.AuditDir(), Level: audit.Level(c.Trust.Audit.Level), Keep: c.Trust.Audit.Keep, Forward: target}
}

// maxKey limits a secret in a file, in bytes.
const maxKey = 16 << 10

// endpoint reads the key of an endpoint.
func (c *Config) endpoint(key string, e Endpoint) (route.Endpoint, error) {
	out := route.Endpoint{URL: e.URL, Model: e.Model}
	if e.KeyFile == "" || e.URL == "" {
		return out, nil
	}
	var err error
	out.Key, err = readSecret(e.KeyFile, key+".key_file")
	return out, err
}

// readSecret returns the content of a file with a secret, which other users must not be able to read. The error names what the file is.
func readSecret(path, what string) (string, error) {
	info, err := os.Stat(path)
	var raw []byte
	switch {
	case err != nil:
	case info.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows": // which makes up the mode
		return "", interact.Errorf(interact.KeyPermissions, "chmod 600 "+path, "other users can read %s", what)
	case info.Size() > maxKey:
		err = fmt.Errorf("the file has %d bytes", info.Size())
	default:
		raw, err = os.ReadFile(path)
	}
	if err != nil {
		return "", &interact.Error{Code: interact.ConfigInvalid, Title: what + " cannot be read", Err: err, Hint: "name the file with the secret"}
	}
	return strings.TrimSpace(string(raw)), nil
}

// rules returns the rules of callers.
func (c *Config) rules() policy.Rules {
	return policy.Rules{Options: rules.Options{Untrusted: c.Trust.Untrusted, Relay: c.Profile == "public", Connect: c.Trust.Connect, Stale: c.Trust.Stale, File: c.PolicyFile()}, PerPeer: float64(c.Trust.Rate.PerPeer), ReadsPerPeer: float64(c.Trust.Rate.Reads), Burst: c.Trust.Rate.Burst, PerThing: float64(c.Trust.Rate.PerThing), ThingBurst: c.Trust.Rate.Burst, UntrustedDeadline: time.Duration(c.Interact.UntrustedDeadline), UntrustedRun: time.Duration(c.Interact.Tasks.UntrustedMaxDuration), Concurrency: c.Interact.Concurrency, CallerConcurrency: c.Interact.PerCaller, ThingConcurrency: c.Interact.PerThing, Subscriptions: c.Interact.Subscriptions}
}

// share is the fraction of recorded traces; none is negative, because zero means all.
func share(percent int) float64 {
	if percent == 0 {
		return -1
	}
	return float64(percent) / 100
}
