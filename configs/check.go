package configs

import (
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lmosd/lmosd/audit"
	"github.com/lmosd/lmosd/discovery/explore"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/gateway/oidc"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/lazyregexp"
	"github.com/lmosd/lmosd/p2p"
)

// check reports values that are well formed but cannot work.
func (c *Config) check(ps *problems) {
	c.checkNode(ps)
	c.checkAddrs(ps)
	c.checkMesh(ps)
	c.checkTrust(ps)
	c.checkHTTP(ps)
	c.checkListeners(ps)
	c.checkSearch(ps)
	c.checkURLs(ps)
}

// bad reports the value of a key at its origin.
func (c *Config) bad(ps *problems, key, hint, format string, args ...any) *Problem {
	at, ok := c.places[key]
	if !ok {
		at = place{text: "default"}
	}
	return ps.add(interact.ConfigInvalid, at, key, hint, format, args...)
}

func (c *Config) checkNode(ps *problems) {
	if name := c.Node.Name; utf8.RuneCountInString(name) > 64 || strings.ContainsFunc(name, unicode.IsControl) {
		c.bad(ps, "node.name", "choose a short name", "node.name has more than 64 characters, or control characters")
	}
	for _, at := range []struct{ key, path string }{{"node.data_dir", c.Node.DataDir}, {"node.key", strings.TrimPrefix(c.Node.Key, "file:")},
		{"http.socket", c.HTTP.Socket}, {"interact.credentials", c.Interact.Credentials}} {
		// Only a shell expands it; a folder of that name would be a surprise.
		if strings.HasPrefix(at.path, "~") {
			c.bad(ps, at.key, "write the whole path", "%s begins with ~, which is not expanded here", at.key)
		}
	}
	path, isFile := strings.CutPrefix(c.Node.Key, "file:")
	switch {
	case c.Node.Key == "auto" || isFile && path != "":
	case isFile || c.Node.Key == "":
		c.bad(ps, "node.key", "auto, or file:PATH", "node.key has no file name")
	default:
		// Any file may be the key.
		ps.secret(c.places["node.key"], "node.key", `put it into a file of mode 0600 and write "file:PATH"`)
	}
	if source := c.Node.Passphrase; source != "" && !IsPassphraseSource(source) {
		// Any other text may be the passphrase.
		ps.secret(c.places["node.passphrase"], "node.passphrase", "write prompt, fd:N or credential:NAME")
	}
}

// IsPassphraseSource reports whether text is a source of a passphrase, as in node.passphrase: prompt, fd:N or credential:NAME. Standard
// output and standard error are none.
func IsPassphraseSource(text string) bool { return passphraseSource().MatchString(text) }

var passphraseSource = lazyregexp.New(`^(prompt|fd:(0|[3-9]|[1-9][0-9]{1,3})|credential:[A-Za-z0-9_-][A-Za-z0-9._-]{0,127})$`)

// named is a list with its key.
type named struct {
	key    string
	values []string
}

func (c *Config) checkAddrs(ps *problems) {
	for _, list := range []named{{"listen.p2p", c.Listen.P2P}, {"listen.announce", c.Listen.Announce},
		{"listen.no_announce", c.Listen.NoAnnounce}, {"mesh.bootstrap", addressesIn(c.Mesh.Bootstrap)}} {
		for _, a := range list.values {
			if !strings.HasPrefix(a, "/") {
				c.bad(ps, list.key, "a multiaddr looks like /ip4/192.0.2.1/tcp/4667", "%q in %s is not a multiaddr", a, list.key)
			}
		}
	}
	for _, r := range c.Mesh.Filter {
		if _, err := netip.ParsePrefix(r); err != nil {
			c.bad(ps, "mesh.filter", "for example 10.8.0.0/16", "expected an address range, got %q", r)
		}
	}
	if c.usesCertificate() && c.HTTP.TLS.Cert == "" {
		c.bad(ps, "listen.p2p", "set http.tls.cert and http.tls.key, or use /ws", "an address with /tls/ws requires a certificate")
	}
	for _, a := range c.Mesh.Bootstrap {
		switch err := p2p.CheckBootstrap(a); {
		case strings.HasPrefix(a, "/") && !strings.Contains(a, "/p2p/") && !strings.HasPrefix(a, "/dnsaddr/"):
			c.bad(ps, "mesh.bootstrap", "copy a whole address from that node",
				"%q does not end in /p2p/ and the id of the peer", a).Next = interact.Next(interact.StepID)
		case err != nil && isDID(a):
			c.bad(ps, "mesh.bootstrap", "for example did:web:example.org", "%v", err)
		}
	}
}

func isDID(text string) bool { return strings.HasPrefix(text, "did:") }

// addressesIn returns the entries of mesh.bootstrap that are not DIDs.
func addressesIn(entries []string) []string { return slices.DeleteFunc(slices.Clone(entries), isDID) }

// usesCertificate reports whether the node listens for WebSockets with TLS.
func (c *Config) usesCertificate() bool {
	return slices.ContainsFunc(c.Listen.P2P, func(a string) bool { return strings.HasSuffix(a, "/tls/ws") })
}

var networkName = lazyregexp.New(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

func (c *Config) checkMesh(ps *problems) {
	for _, where := range c.Mesh.Introductions {
		if err := explore.CheckConfigured(where); err != nil {
			c.bad(ps, "mesh.introductions", "for example did:web:things.example, or https://things.example/.well-known/wot", "%v", err)
		}
	}
	if !networkName().MatchString(c.Mesh.Network) {
		c.bad(ps, "mesh.network", "for example lmos or my-team", "%q is not a network name: lower case letters, digits and inner "+
			"hyphens, at most 32", c.Mesh.Network)
	}
	if p := c.Mesh.Limits.Peers; p.Low > p.High {
		c.bad(ps, "mesh.limits.peers.low", "lower it, or raise mesh.limits.peers.high", "low is %d and high is %d", p.Low, p.High)
	}
}

func (c *Config) checkTrust(ps *problems) {
	if _, err := audit.ParseTarget(c.Trust.Audit.Forward); err != nil {
		c.bad(ps, "trust.audit.forward", "for example syslog+udp://127.0.0.1:514", "%v", err)
	}
}

func (c *Config) checkHTTP(ps *problems) {
	if c.HTTP.Socket == "" {
		c.bad(ps, "http.socket", "auto, none, or a path", "http.socket is empty")
	}
	if err := oidc.Check(c.HTTP.OIDC); err != nil {
		c.bad(ps, "http.oidc", "for example  - {name: acme, issuer: https://login.acme.example, audience: https://node.acme.example}", "%v", err)
	}
	if (c.HTTP.TLS.Cert == "") != (c.HTTP.TLS.Key == "") {
		missing, given := "http.tls.key", "http.tls.cert"
		if c.HTTP.TLS.Cert == "" {
			missing, given = given, missing
		}
		c.bad(ps, given, "set both, or neither", "%s is set, but %s is not", given, missing)
	}
	if c.HTTP.TLS.Cert != "" && strings.HasPrefix(strings.ToLower(c.HTTP.PublicURL), "http:") {
		c.bad(ps, "http.public_url", "https://…", "the API is served over HTTPS, but its URL is %q", c.HTTP.PublicURL)
	}
	if c.HTTP.Listen == "" {
		if c.HTTP.TLS.Cert != "" && !c.usesCertificate() {
			c.bad(ps, "http.tls.cert", "set http.listen, or remove http.tls", "http.listen is empty: nothing uses the certificate")
		}
		if c.HTTP.Socket == "none" {
			c.bad(ps, "http.listen", "set http.listen or http.socket", "the node would have no API: http.listen is empty and "+
				"http.socket is none")
		}
		return
	}
	host, port, err := net.SplitHostPort(c.HTTP.Listen)
	if _, e := strconv.ParseUint(port, 10, 16); err != nil || e != nil {
		c.bad(ps, "http.listen", "for example 127.0.0.1:4668", "expected an address and port, got %q", c.HTTP.Listen)
		return
	}
	if _, err := p2p.SharesPort(c.Listen.P2P, c.HTTP.Listen); err != nil {
		c.bad(ps, "http.listen", "give both the same address, or another port to one", "%v", err)
	}
	addr, err := netip.ParseAddr(host)
	switch {
	case host != "" && err != nil:
		// A name may mean only ::1, or change its address.
		c.bad(ps, "http.listen", "write 127.0.0.1:"+port, "expected a literal address, got the name %q", host)
	case !addr.IsLoopback() && c.HTTP.Auth == "none":
		p := ps.add(interact.WildcardBind, c.places["http.auth"], "http.listen", "listen on 127.0.0.1:"+port+", or set http.auth: token",
			"other hosts can reach %s, but http.auth is none", c.HTTP.Listen)
		if c.places["http.listen"].line > 0 { // else the file does not decide
			p.Hint, p.Next = "set http.auth: token, or listen on this machine only", interact.Next(interact.StepSet, "http.listen", "127.0.0.1:"+port)
		}
	case !addr.IsLoopback() && c.HTTP.DirectoryAuth != "open" && !isEncrypted(&c.HTTP):
		c.bad(ps, "http.listen", gateway.PlainHint, "plain HTTP at %s: hosts on the network path could read the tokens of callers", c.HTTP.Listen)
	}
}

// isEncrypted reports whether the connections of other hosts to the API are encrypted.
func isEncrypted(h *HTTP) bool {
	o := gateway.Options{CertFile: h.TLS.Cert, Proxy: h.TLS.Mode == "proxy", Operation: gateway.Operation{PublicURL: h.PublicURL}}
	return o.IsEncrypted()
}

// checkListeners checks the listeners of other protocols. CoAP callers are never authenticated, and MQTT callers only with a token.
func (c *Config) checkListeners(ps *problems) {
	for _, listener := range []struct {
		key, listen, example string
		open                 bool
	}{{"mqtt.listen", c.MQTT.Listen, "127.0.0.1:1883", c.HTTP.Auth == "none"}, {"coap.listen", c.CoAP.Listen, "127.0.0.1:5683", true}} {
		if listener.listen == "" {
			continue
		}
		addr, err := netip.ParseAddrPort(listener.listen)
		switch {
		case err != nil:
			c.bad(ps, listener.key, "for example "+listener.example, "expected an address and port, got %q", listener.listen)
		case listener.open && !addr.Addr().IsLoopback():
			ps.add(interact.WildcardBind, c.places[listener.key], listener.key, listener.key+": "+listener.example, "with %s, every host that can reach %s could call agents as this node",
				listener.key, listener.listen)
		}
	}
}

func (c *Config) checkURLs(ps *problems) {
	for _, at := range []struct{ key, url, example string }{{"telemetry.traces.endpoint", c.Telemetry.Traces.Endpoint, "http://127.0.0.1:4318"},
		{"http.public_url", c.HTTP.PublicURL, "https://node.example"},
		{"search.embeddings.url", c.Search.Embeddings.URL, "http://127.0.0.1:11434/v1"},
		{"search.model.url", c.Search.Model.URL, "http://127.0.0.1:11434/v1"}} {
		u, err := url.Parse(at.url)
		if at.url != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "") {
			c.bad(ps, at.key, "for example "+at.example, "expected an http URL, got %q", at.url)
		}
	}
	for _, origin := range c.HTTP.Origins {
		if !isOrigin(origin) {
			c.bad(ps, "http.origins", "for example https://app.example", "expected a web origin as browsers send it: in lower case, without "+
				"wildcard, default port and path, got %q", origin)
		}
	}
	for _, origin := range c.A2A.KeyOrigins {
		u, err := url.Parse(origin)
		if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
			c.bad(ps, "a2a.key_origins", "for example https://keys.example", "expected an https origin, got %q", origin)
		}
	}
}

// checkSearch checks the requirements of the routing method.
func (c *Config) checkSearch(ps *problems) {
	for _, e := range []struct {
		key string
		Endpoint
		needed bool
	}{{"search.embeddings", c.Search.Embeddings, c.Search.Method == "vector" || c.Search.Method == "hybrid"},
		{"search.model", c.Search.Model, c.Search.Method == "llm" || c.Search.Method == "hybrid"}} {
		switch {
		case e.needed && e.URL == "":
			c.bad(ps, "search.method", "set "+e.key+".url and "+e.key+".model, or use lexical", "%s requires %s", c.Search.Method, e.key)
		case e.URL != "" && e.Model == "":
			c.bad(ps, e.key+".url", "for example "+e.key+".model: all-minilm", "%s.model is missing", e.key)
		}
	}
}

// isOrigin reports whether a browser can send text as the origin of a page (RFC 6454 §6.2).
func isOrigin(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || text != strings.ToLower(u.Scheme+"://"+u.Host) || strings.HasSuffix(text, ":") {
		return false
	}
	other := strings.IndexFunc(u.Host, func(r rune) bool { return r == '*' || r >= 0x80 }) < 0
	return other && (u.Scheme == "http" && u.Port() != "80" || u.Scheme == "https" && u.Port() != "443")
}
