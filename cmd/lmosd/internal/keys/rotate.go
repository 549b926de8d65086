package keys

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/configcmd"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/did/rotation"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/trust"
)

// Times that the command waits for an issuer.
const (
	confirmWait  = 45 * time.Second // to confirm the new key
	completeWait = 30 * time.Second // to revoke the old one
)

func newRotateCommand(c *cli.Console) *cobra.Command {
	var newIdentity bool
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "replace the key of the node, with its membership",
		Long: "Replaces the key of a stopped node, and so its DID and PeerID, by running the node for some seconds (with the " +
			"flags of lmosd run). In an organization, an issuer gives the new key the membership of the old one, which " +
			"members and partners then refuse; the agents are published again. After an interruption, repeat the command. " +
			"Without an organization, nothing proves the succession: --new-identity makes the node one that others do not " +
			"know.",
		Example: `  lmosd keys rotate
  lmosd keys rotate --new-identity`,
		Annotations: cli.About(cli.ScopeMesh, cli.Danger, "lmosd org status, lmosd audit verify, lmosd keys export"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			conf, err := configcmd.Load(c, cmd)
			if err != nil {
				return err
			}
			return rotate(cmd.Context(), c, conf, newIdentity)
		},
	}
	configcmd.AddHiddenKeyFlags(cmd)
	cmd.Flags().BoolVar(&newIdentity, "new-identity", false, "without an organization: become a node that others do not know")
	return cmd
}

// rotate replaces the key of a node, or finishes that.
func rotate(ctx context.Context, c *cli.Console, conf *configs.Config, newIdentity bool) error {
	r, err := begin(ctx, c, conf, newIdentity, nil)
	if err != nil {
		return err
	}
	for _, s := range r.steps() {
		if err := r.do(ctx, s); err != nil {
			return err
		}
	}
	return r.show()
}

// Opener returns the function that opens the key of the node ([node.Options]). It first finishes a replacement of the key that an issuer has
// confirmed: the node can go on with the new key only.
func Opener(ctx context.Context, c *cli.Console, conf *configs.Config) (func() (*keystore.Key, error), error) {
	open := func() (*keystore.Key, error) { return Open(ctx, c, conf) }
	p, err := rotation.Load(conf.Node.DataDir)
	if err != nil {
		return nil, damaged(conf.Node.DataDir, err)
	}
	if p == nil || !p.Confirmed {
		return open, nil
	}
	r, err := newRotator(ctx, c, conf)
	if err != nil {
		return nil, err
	}
	if r.confirmed() {
		c.Note("the key of the node was being replaced: finishing that")
		for _, s := range r.steps()[:2] { // the node itself does the rest
			if err := r.do(ctx, s); err != nil {
				return nil, err
			}
		}
	}
	return func() (*keystore.Key, error) { return r.current, nil }, nil
}

func damaged(dir string, err error) error {
	return &interact.Error{Code: interact.StoreCorrupt, Title: "the state of a replacement of the node's key cannot be read", Err: err,
		Hint: "restore rotation.json in " + dir + " from a backup, or delete it if the key was not replaced"}
}

// A rotator replaces the key of a node that does not run.
type rotator struct {
	console *cli.Console
	conf    *configs.Config
	path    string // of the key file
	phrase  keystore.Passphrase
	current *keystore.Key // in path
	fresh   *keystore.Key // the next one; nil: it is current
	pending *rotation.Pending

	withdrawn int
	completed bool
	// crash is called with the name of each step before it, and fails to simulate a crash there. Nil except in tests.
	crash func(step string) error
}

// newRotator opens the key and the state of a replacement.
func newRotator(ctx context.Context, c *cli.Console, conf *configs.Config) (*rotator, error) {
	path, credential := conf.KeyFile()
	if credential {
		return nil, cli.Usage("copy the key to identity.pem in the data directory, start the node without the credential, rotate, and make the credential of the new file",
			"the key is the systemd credential %s, which lmosd does not change", path)
	}
	if conf.Node.DataDir == "" {
		return nil, cli.Usage("a node without a data directory has another key at each start", "there is no key to replace")
	}
	r := &rotator{console: c, conf: conf, path: path}
	ask := newReader(c, conf).ask(ctx, path)
	var err error
	if r.current, err = keystore.Unlock(path, r.remembers(ask)); err != nil {
		return nil, noKey(path, err)
	}
	if r.pending, err = rotation.Load(conf.Node.DataDir); err != nil {
		return nil, damaged(conf.Node.DataDir, err)
	}
	if r.confirmed() {
		return r, r.openNext(false)
	}
	return r, nil
}

// remembers returns an ask that keeps the passphrase, with which the next key is encrypted as well.
func (r *rotator) remembers(ask keystore.Ask) keystore.Ask {
	return func(wrong int) (p keystore.Passphrase, err error) {
		if wrong == 0 && !r.phrase.IsZero() {
			return r.phrase, nil
		}
		r.phrase, err = ask(wrong)
		return r.phrase, err
	}
}

// confirmed reports whether an issuer has confirmed the next key, which is not the key of the node yet.
func (r *rotator) confirmed() bool {
	return r.pending != nil && r.pending.Confirmed && r.pending.From == r.current.DID()
}

// openNext opens the next key. With create, it makes one if there is none, or if a crash has left none that can be read.
func (r *rotator) openNext(create bool) error {
	path, err := keystore.NextPath(r.path)
	if err != nil {
		return explain(r.path, err)
	}
	ask := func(wrong int) (keystore.Passphrase, error) {
		if wrong > 0 {
			return r.phrase, keystore.ErrPassphrase
		}
		return r.phrase, nil
	}
	r.fresh, err = keystore.Unlock(path, ask)
	if err == nil || !create {
		return explain(path, err)
	}
	if r.fresh, err = keystore.New(); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(path), r.fresh.SaveEncrypted(path, r.phrase)); err != nil {
		return &interact.Error{Code: interact.KeyPermissions, Title: "the next key cannot be stored beside " + r.path, Err: cli.Reason(err),
			Hint: "make the folder of the key writable, or move the key to identity.pem in the data directory: lmosd config set node.key --unset"}
	}
	return nil
}

// begin makes the next key and the request, unless a replacement goes on. crash is that of the rotator.
func begin(ctx context.Context, c *cli.Console, conf *configs.Config, newIdentity bool, crash func(string) error) (r *rotator, err error) {
	if path, _ := conf.KeyFile(); conf.Node.DataDir != "" {
		if _, err := os.Stat(path); err != nil {
			return nil, noKey(path, err)
		}
		release, err := lock(conf.Node.DataDir)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, release()) }()
	}
	if r, err = newRotator(ctx, c, conf); err != nil {
		return nil, err
	}
	r.crash = crash
	if r.confirmed() || r.pending.Follows(r.current.DID()) {
		return r, nil
	}
	return r, r.request(newIdentity)
}

// request makes the next key, and stores the request.
func (r *rotator) request(newIdentity bool) error {
	scid, err := trust.OrganizationIn(r.conf.Node.DataDir, r.current.DID())
	switch {
	case err != nil:
		return err
	case scid == "" && !newIdentity:
		return interact.Errorf(interact.Usage, "join an organization first, or give up the identity: for others, the node is then another one",
			"the node is in no organization: no other node can know that the new key succeeds the old one").
			Then(interact.StepOrgJoin).Then(interact.StepOption, "new-identity")
	case scid != "" && newIdentity:
		return interact.Errorf(interact.Usage, "rotate without the option, or leave the organization first",
			"the node is in an organization, which gives the new key the membership of the old one").Then(cli.StepCommand, "lmosd keys rotate")
	}
	if err := r.step("key"); err != nil {
		return err
	}
	if err := r.openNext(true); err != nil {
		return err
	}
	if err := r.step("request"); err != nil {
		return err
	}
	raw, err := rotation.Sign(rotation.Statement{Network: r.conf.Mesh.Network, SCID: scid, Created: time.Now()}, r.current, r.fresh)
	if err != nil {
		return err
	}
	if r.pending, err = rotation.Request(r.conf.Node.DataDir, raw); err == nil && scid == "" {
		r.pending, err = r.pending.Confirm(nil) // by the operator
	}
	return err
}

func (r *rotator) step(name string) error {
	if r.crash == nil {
		return nil
	}
	return r.crash(name)
}

// A step is a part of a replacement that can be repeated after a crash.
type step struct {
	name string
	do   func(ctx context.Context) error
}

// steps returns what follows the request.
func (r *rotator) steps() []step {
	return []step{{"hand over", r.handOver}, {"replace", r.replace}, {"complete", r.complete}}
}

func (r *rotator) do(ctx context.Context, s step) error {
	if err := r.step(s.name); err != nil {
		return err
	}
	return s.do(ctx)
}

// handOver runs the node with the old key, which hands over what it has.
func (r *rotator) handOver(ctx context.Context) error {
	if r.fresh == nil {
		return nil // done before
	}
	r.inform("the node starts with the old key: an issuer is to confirm the new one")
	return r.run(ctx, r.current, func(ctx context.Context, n *node.Node) (err error) {
		ctx, cancel := context.WithTimeout(ctx, confirmWait)
		defer cancel()
		r.withdrawn, err = n.Rotate(ctx, r.fresh)
		return err
	})
}

// replace replaces the key file: from here on, the old key is lost.
func (r *rotator) replace(context.Context) (err error) {
	if r.fresh == nil {
		return nil
	}
	release, err := lock(r.conf.Node.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	if err := keystore.Promote(r.path); err != nil {
		return explain(r.path, err)
	}
	r.current, r.fresh = r.fresh, nil
	return nil
}

// complete runs the node with the new key until an issuer has revoked the old one. If none can be reached, the node does it when it runs.
func (r *rotator) complete(ctx context.Context) error {
	return r.run(ctx, r.current, func(ctx context.Context, _ *node.Node) error {
		ctx, cancel := context.WithTimeout(ctx, completeWait)
		defer cancel()
		for {
			p, err := rotation.Load(r.conf.Node.DataDir)
			if r.completed = err == nil && p == nil; r.completed || err != nil {
				return err
			}
			if backoff.Sleep(ctx, 50*time.Millisecond) != nil {
				return nil
			}
		}
	})
}

// run runs the node with a key and without its API, until f returns.
func (r *rotator) run(ctx context.Context, key *keystore.Key, f func(context.Context, *node.Node) error) error {
	o, err := r.conf.Options()
	if err != nil {
		return err
	}
	o.Key, o.HTTP, o.MQTT, o.CoAP, o.Log = key, nil, "", "", configcmd.CommandLogger(r.console)
	n, err := node.New(o)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- n.Run(running) }()
	err = f(running, n)
	stop()
	return errors.Join(err, <-ended, n.Close())
}

// A replaced is the document of lmosd keys rotate.
type replaced struct {
	cli.Head
	DID    did.DID `json:"did"`
	PeerID string  `json:"peer_id"`
	Before did.DID `json:"before"`
	// Organization is its SCID; empty: the node has another identity.
	Organization string `json:"organization,omitempty"`
	Withdrawn    int    `json:"withdrawn"` // agents
	// Revoked is false if no issuer has revoked the old key yet: the node has it done when it runs.
	Revoked bool `json:"revoked"`
	// Rules are the places of access rules of this node that name the old DID.
	Rules []string `json:"rules"`
}

// show prints what has changed, and what remains to be done by people.
func (r *rotator) show() error {
	p := r.pending
	doc := replaced{cli.NewHead("KeyRotation"), p.To, p.To.PeerText(), p.From, p.SCID, r.withdrawn, r.completed && p.SCID != "", mentions(r.conf, p.From)}
	s := &terminal.Sheet{}
	s.Add("did", string(doc.DID))
	s.Add("peer", doc.PeerID)
	s.Add("before", string(doc.Before))
	if doc.Withdrawn > 0 {
		s.Add("agents", fmt.Sprintf("%d withdrawn; lmosd run publishes them with the new key", doc.Withdrawn))
	}
	if err := r.console.Show(cli.View{Doc: doc, Names: []string{string(doc.DID)}, People: cli.Body(s)}); err != nil {
		return err
	}
	switch {
	case p.SCID == "":
		r.console.Warn("for others this is an unknown node: what they permitted to " + string(p.From) + " is not permitted to it")
	case !r.completed:
		r.console.Warn("no issuer has revoked the old key yet; the node has it done when it runs and reaches one")
	default:
		r.inform("members and partners refuse the old key; rules that name the organization or a role apply to the new one")
	}
	for _, place := range doc.Rules {
		r.console.Warn(place + " names the old DID: the rule does not apply to the new one")
	}
	r.inform("at other nodes, replace the old DID in rules, and /p2p/" + p.From.PeerText() + " in bootstrap addresses; open invitations of this node end")
	r.console.Next("lmosd run")
	return nil
}

// inform prints a line for people on standard error.
func (r *rotator) inform(text string) {
	if r.console.ForPeople() {
		r.console.Talk.Line(terminal.OneLine(text))
	}
}

// mentions returns the lines of the access rules that name a DID: "policy.yaml:12".
func mentions(conf *configs.Config, id did.DID) []string {
	all := []string{}
	rules := conf.PolicyFile()
	for _, file := range []string{rules, strings.TrimSuffix(rules, filepath.Ext(rules)) + ".cedar"} {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // missing, or reported by the node
		}
		lines := bufio.NewScanner(bytes.NewReader(text))
		for n := 1; lines.Scan(); n++ {
			if strings.Contains(lines.Text(), string(id)) {
				all = append(all, fmt.Sprintf("%s:%d", file, n))
			}
		}
	}
	return all
}
