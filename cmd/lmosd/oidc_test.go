package main

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/internal/testprogram"
)

// A user with a token of the company's authorization server, another process, uses a node by the commands: its rights are those that the
// configuration maps the token to, and neither the log nor the audit log of the node has the token.
func TestTokenOfAnIdentityProvider(t *testing.T) {
	t.Parallel()
	issuer := authorizationServer(t)
	x := newUser(t)
	file := x.weather()
	config := x.file("lmosd.yaml", `http:
  oidc:
    - name: acme
      issuer: `+issuer+`
      audience: https://node.acme.example
      scopes: {lmos.call: [call], lmos.find: [find]}
      claims: {groups: {adjusters: [adjuster]}}
trust:
  audit: {level: all}
`)
	x.ok("config", "validate", config)
	n := x.node("n", "--config", config, "-v")
	x.at(n).ok("publish", file)
	contains(t, x.at(n).lmosd("token", "ls").errors, "identity provider acme ("+issuer+"): its keys are read when its first token arrives")

	as := func(client, scope, audience string) (*user, string) {
		with, token := *x, clientToken(t, issuer, client, scope, audience)
		with.env = append(append([]string{}, x.env...), "LMOSD_TOKEN="+token)
		return &with, token
	}
	const node = "https://node.acme.example"
	crm, token := as("crm", "lmos.call", node)
	crm.ok("call", "weather", "getWeather", "question=Oslo", "interactionMode=text", "--node", n.API)
	contains(t, crm.fails(cli.ExitRefused, "publish", file, "--node", n.API), "LMOS-1403", "http.oidc")
	finder, _ := as("reporter", "lmos.find", node)
	contains(t, finder.ok("find", "--node", n.API), "weather")
	contains(t, finder.fails(cli.ExitRefused, "call", "weather", "getWeather", "question=Oslo", "interactionMode=text", "--node", n.API), "LMOS-1403")
	other, _ := as("crm", "lmos.call", "https://other.example")
	contains(t, other.fails(cli.ExitRefused, "find", "--node", n.API), "LMOS-3003", "audience")

	contains(t, x.at(n).lmosd("token", "ls").errors, "identity provider acme ("+issuer+"): 1 key, read ")
	x.at(n).ok("policy", "deny", "oidc:acme:crm", "--to", "invoke", "--on", "weather/getWeather")
	eventually(t, "the rule is in force", func() bool {
		return crm.lmosd("call", "weather", "getWeather", "question=Oslo", "interactionMode=text", "--node", n.API).code == cli.ExitRefused
	})
	contains(t, x.at(n).ok("audit", "ls"), "oidc:acme:crm")
	for _, text := range []string{n.out.String(), n.talk.String()} {
		if strings.Contains(text, token) || strings.Contains(text, strings.Split(token, ".")[2]) {
			t.Error("the log of the node has the token")
		}
	}
	for _, dir := range []string{"audit", "own"} {
		_ = filepath.WalkDir(filepath.Join(n.dir, dir), func(path string, d os.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				if raw, err := os.ReadFile(path); err != nil || strings.Contains(string(raw), strings.Split(token, ".")[2]) {
					t.Errorf("%s has the token (%v)", path, err)
				}
			}
			return err
		})
	}
}

// authorizationServer runs the server of interop until the test ends, and returns its issuer.
func authorizationServer(t *testing.T) string {
	t.Helper()
	const dir = "../../interop"
	cmd := exec.Command(testprogram.Modules(t, dir), "oidc-server.mjs", "0", "k1", "EdDSA")
	cmd.Dir = dir
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	var issuer string
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &issuer)
	}
	if err != nil {
		t.Fatalf("the server printed %q: %v", line, err)
	}
	return issuer
}

// clientToken returns an access token of a client of the authorization server.
func clientToken(t *testing.T, issuer, client, scope, resource string) string {
	t.Helper()
	resp, err := http.PostForm(issuer+"/token", url.Values{"grant_type": {"client_credentials"}, "client_id": {client},
		"client_secret": {"secret of " + client}, "scope": {scope}, "resource": {resource}})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Token string `json:"access_token"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Token == "" {
		t.Fatalf("no token: %v", err)
	}
	return answer.Token
}
