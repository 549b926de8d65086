package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/keys"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// withdrawnFor is the life of the tombstone of a granted Thing: longer than that of any grant.
const withdrawnFor = 30 * 24 * time.Hour

// ownerFlags are the flags of the commands that sign with the key of the owner.
type ownerFlags struct {
	key, passphrase, file string
	hosts, add, remove    []string
	life                  time.Duration
}

// addKey adds the flags of the key.
func (f *ownerFlags) addKey(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVar(&f.key, "key", "", usage)
	cmd.Flags().StringVar(&f.passphrase, "passphrase", promptSource, "`SOURCE` of the passphrase of the key: prompt, fd:N or credential:NAME")
}

func (f *ownerFlags) addLife(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.life, "expires", td.GrantLife, "how long the grant is valid, at most 168h")
}

// open opens the key of the owner.
func (f *ownerFlags) open(ctx context.Context, a *app, create bool) (*keystore.Key, error) {
	if f.key == "" {
		return nil, cli.Usage("keep it off the nodes", "--key is missing: it names the file of the owner's key")
	}
	return keys.Owner(ctx, a.Console, f.key, f.passphrase, create)
}

func newHostingSign(a *app) *cobra.Command {
	var f ownerFlags
	cmd := &cobra.Command{
		Use:   "sign <file>",
		Short: "sign a description and grant it to nodes, offline",
		Long: "Signs a Thing Description and a grant for the nodes in --host, whose DIDs lmosd id prints, and writes both to one file\n" +
			"without secrets: weather.grant.json for weather.td.json. It needs no node. A missing key file is made, encrypted if\n" +
			"--passphrase is set: keep it off the nodes. An existing grant of the agent is replaced by one with a higher number.",
		Example: `  lmosd hosting sign weather.td.json --key owner.pem --host z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH
  curl -s http://127.0.0.1:8080/td | lmosd hosting sign - --file weather.grant.json --key owner.pem --host z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd hosting put, lmosd hosting renew, lmosd id"),
		Args:        cli.Takes(1, 1),
		RunE:        func(cmd *cobra.Command, args []string) error { return a.signGrant(cmd.Context(), args[0], f) },
	}
	f.addKey(cmd, "`FILE` of the owner's key; a missing one is made")
	cmd.Flags().StringArrayVar(&f.hosts, "host", nil, "`DID` of a node that may host the agent; may be repeated")
	cmd.Flags().StringVar(&f.file, "file", "", "`FILE` of the grant, if it is another one")
	f.addLife(cmd)
	return cmd
}

func newHostingRenew(a *app) *cobra.Command {
	var f ownerFlags
	cmd := &cobra.Command{
		Use:   "renew <grant>",
		Short: "sign the next grant of an agent: longer, or for other nodes",
		Long: "Replaces the grant in the file by the next one of the same description, which is valid from now on. Put it at one of\n" +
			"the hosts: the others adopt it, and nodes that it does not name stop to host the agent. A removed node that did not\n" +
			"receive it is called until its old grant ends, by nodes that did not receive the new one either.",
		Example: `  lmosd hosting renew weather.grant.json --key owner.pem
  lmosd hosting renew weather.grant.json --key owner.pem --add z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp
  lmosd hosting renew weather.grant.json --key owner.pem --remove z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd hosting put, lmosd hosting sign"),
		Args:        cli.Takes(1, 1),
		RunE:        func(cmd *cobra.Command, args []string) error { return a.renewGrant(cmd.Context(), args[0], f) },
	}
	f.addKey(cmd, "`FILE` of the owner's key")
	cmd.Flags().StringArrayVar(&f.hosts, "host", nil, "`DID` of a node that may host the agent, in place of all of before; may be repeated")
	cmd.Flags().StringArrayVar(&f.add, "add", nil, "`DID` of a further node; may be repeated")
	cmd.Flags().StringArrayVar(&f.remove, "remove", nil, "`DID` of a node that may not host it any longer; may be repeated")
	f.addLife(cmd)
	return cmd
}

func newHostingWithdraw(a *app) *cobra.Command {
	var f ownerFlags
	cmd := &cobra.Command{
		Use:   "withdraw <grant>",
		Short: "withdraw an agent at all of its hosts, as its owner",
		Long: "Signs the withdrawal of an agent and announces it through the node: its hosts stop to host it, and other nodes remove\n" +
			"it. The withdrawal is valid for 30 days. A grant that is signed later offers the agent again.",
		Example: `  lmosd hosting withdraw weather.grant.json --key owner.pem
  lmosd hosting withdraw weather.grant.json --key owner.pem --passphrase fd:3 3< passphrase`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd hosting end, lmosd hosting sign"),
		Args:        cli.Takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *api.Client, name string) (*api.Publication, error) {
				record, err := a.signWithdrawal(ctx, name, f)
				if err != nil {
					return nil, err
				}
				return c.WithdrawGranted(ctx, record)
			})
		},
	}
	f.addKey(cmd, "`FILE` of the owner's key")
	return cmd
}

// A grantFile is a file with a grant.
type grantFile struct {
	*api.HostingGrant
	grant *td.Grant
}

// readGrant reads a file, or standard input for "-".
func (a *app) readGrant(name string) (*grantFile, error) {
	raw, err := input.Content(a.Console, name, api.MaxHostingGrant)
	if err != nil {
		return nil, err
	}
	f := new(grantFile)
	if f.HostingGrant, f.grant, err = api.ParseHostingGrant(raw); err != nil {
		e := *interact.AsError(err)
		e.Title = input.Called(name) + " is not a grant: " + e.Title
		return nil, &e
	}
	return f, nil
}

// nextNumber returns a number above that of old, which may be nil: the time, so that it is also above those of a file that was lost.
func nextNumber(old *td.Grant, now time.Time) uint64 {
	number := uint64(now.UnixMilli())
	if old != nil {
		number = max(number, old.Number+1)
	}
	return number
}

// signGrant signs a description and a grant.
func (a *app) signGrant(ctx context.Context, name string, f ownerFlags) error {
	raw, err := input.Content(a.Console, name, td.MaxTD)
	if err != nil {
		return err
	}
	hosts, err := hostsIn(f.hosts)
	if err != nil {
		return err
	}
	if len(hosts) == 0 {
		return cli.Usage("", "--host is missing: it names a node that may host the agent").Then(cli.StepCommand, "lmosd id   # on that node")
	}
	if f.file, err = grantFileOf(name, f.file); err != nil {
		return err
	}
	var compact bytes.Buffer
	if json.Compact(&compact, raw) == nil { // td.Complete says what is wrong
		raw = compact.Bytes()
	}
	if _, err := td.Parse(raw); err != nil {
		return inFile(interact.AsError(err), name) // before a key is made
	}
	key, err := f.open(ctx, a, true)
	if err != nil {
		return err
	}
	t, err := td.Complete(raw, key.DID())
	if err != nil {
		return signError(err, name, key)
	}
	old, err := a.replaced(f.file, t, key)
	if err != nil {
		return err
	}
	return a.writeGrant(t, key, hosts, old, f, name)
}

// replaced returns the grant of a Thing in a file that is replaced; nil if there is no file.
func (a *app) replaced(file string, t *td.Thing, key *keystore.Key) (*td.Grant, error) {
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	old, err := a.readGrant(file)
	switch {
	case err != nil:
		return nil, err
	case old.grant.Thing != t.ID || old.grant.Owner != key.DID():
		return nil, cli.Usage("choose another --file", "%s has a grant of %s of %s", file, old.grant.Thing, old.grant.Owner)
	}
	return old.grant, nil
}

// renewGrant replaces the grant in a file.
func (a *app) renewGrant(ctx context.Context, name string, f ownerFlags) error {
	old, err := a.readGrant(name)
	if err != nil {
		return err
	}
	hosts, err := hostsIn(f.hosts)
	added, wrong := hostsIn(f.add)
	removed, wrongToo := hostsIn(f.remove)
	if err := errors.Join(err, wrong, wrongToo); err != nil {
		return err
	}
	if len(hosts) == 0 {
		hosts = old.grant.Nodes
	}
	for _, id := range removed {
		if !slices.Contains(hosts, id) {
			return cli.Usage("it names "+shortOf(hosts), "the grant does not name %s", id)
		}
	}
	hosts = slices.DeleteFunc(slices.Clone(hosts), func(id did.DID) bool { return slices.Contains(removed, id) || slices.Contains(added, id) })
	hosts = append(hosts, added...)
	if len(hosts) == 0 {
		return cli.Usage("", "no node remains in the grant").Then(cli.StepCommand, "lmosd hosting withdraw "+terminal.Shell(name)+" --key "+terminal.Shell(f.key))
	}
	key, err := a.ownerOf(ctx, old, name, f)
	if err != nil {
		return err
	}
	t, err := td.Parse(old.TD)
	if err != nil {
		return inFile(interact.AsError(err), name)
	}
	f.file = name
	return a.writeGrant(t, key, hosts, old.grant, f, name)
}

// ownerOf opens the key of the owner of a grant.
func (a *app) ownerOf(ctx context.Context, g *grantFile, name string, f ownerFlags) (*keystore.Key, error) {
	key, err := f.open(ctx, a, false)
	if err != nil {
		return nil, err
	}
	if key.DID() != g.grant.Owner {
		return nil, cli.Usage("use the key of the owner", "%s is the key of %s; the owner in %s is %s", f.key, key.DID().Short(), input.Called(name), g.grant.Owner.Short())
	}
	return key, nil
}

// signWithdrawal returns the tombstone of the Thing of a grant.
func (a *app) signWithdrawal(ctx context.Context, name string, f ownerFlags) ([]byte, error) {
	g, err := a.readGrant(name)
	if err != nil {
		return nil, err
	}
	key, err := a.ownerOf(ctx, g, name, f)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	s, err := td.SignTombstone(key, g.grant.Thing, td.Lease{Seq: nextNumber(g.grant, now), Now: now, Lifetime: withdrawnFor, Audience: g.grant.Audience}, false,
		g.grant.Capabilities...)
	if err != nil {
		return nil, err
	}
	return s.Record, nil
}

// writeGrant signs the grant after old and writes its file.
func (a *app) writeGrant(t *td.Thing, key *keystore.Key, hosts []did.DID, old *td.Grant, f ownerFlags, name string) error {
	switch {
	case slices.Contains(hosts, key.DID()):
		return cli.Usage("use a key that is on no node", "%s is the key of a node that --host names", f.key)
	case len(hosts) > td.MaxGranted:
		return cli.Usage("use fewer", "got %d nodes, the limit is %d", len(hosts), td.MaxGranted)
	case f.life < time.Second || f.life > td.GrantLife:
		return cli.Usage("", "--expires is %v; expected 1s to %v", f.life, td.GrantLife).Then(interact.StepOption, "expires", "168h")
	case t.Visibility == td.Private:
		return cli.Usage("use another lmosd:visibility", "%s is private: no other node could find it", t.Name())
	}
	now := time.Now()
	g, grant, err := api.SignHostingGrant(t, key, td.GrantLease{Number: nextNumber(old, now), Now: now, Lifetime: f.life.Truncate(time.Second), Nodes: hosts})
	if err != nil {
		return signError(err, name, key)
	}
	content, err := g.Encode()
	if err != nil {
		return err
	}
	if err := replaceFile(f.file, content); err != nil {
		return unwritable(f.file, err)
	}
	doc := struct {
		cli.Head
		File  string  `json:"file"`
		Thing string  `json:"thing"`
		Owner did.DID `json:"owner"`
		api.Grant
	}{cli.NewHead("HostingGrant"), f.file, grant.Thing, grant.Owner, api.Grant{Number: grant.Number, Issued: grant.Issued, Expires: grant.Expires, Nodes: grant.Nodes}}
	err = a.Show(cli.View{Doc: doc, Names: []string{f.file}, People: func(s *terminal.Screen, _ bool) {
		s.Line(terminal.OneLine(fmt.Sprintf("granted %s to %s until %s: %s", t.Name(), terminal.Count(len(hosts), "node", "nodes"), render.Stamp(grant.Expires), f.file)))
	}})
	if err != nil {
		return err
	}
	where := "on each of the nodes"
	if old != nil && old.Hash == grant.Hash {
		where = "on one of the nodes, and on new ones"
	}
	a.elsewhere("lmosd hosting put "+terminal.Shell(f.file), where)
	return nil
}

// signError explains an error of signing.
func signError(err error, name string, key *keystore.Key) error {
	if errors.Is(err, td.ErrOwner) {
		return &interact.Error{Code: interact.BadTD, Title: input.Called(name) + " belongs to another owner than the key, " + key.DID().Short(), Err: err,
			Hint: "use the key of its owner, or remove proof and id from the description"}
	}
	return inFile(interact.AsError(err), name)
}

// hostsIn parses DIDs of nodes, with or without did:key.
func hostsIn(texts []string) (ids []did.DID, err error) {
	for _, text := range texts {
		id, err := did.Parse(render.WithMethod(strings.TrimSpace(text)))
		if err != nil || id.Method() != "key" {
			return nil, cli.Usage("", "%q is not the DID of a node", interact.Excerpt(text, 200)).Then(cli.StepCommand, "lmosd id   # on that node")
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// grantFileOf returns the name of the file of a grant of the description in a file.
func grantFileOf(name, given string) (string, error) {
	switch {
	case given != "":
		return given, nil
	case name == "-":
		return "", cli.Usage("", "--file is missing: the description is from standard input").Then(interact.StepOption, "file", "agent.grant.json")
	}
	base := strings.TrimSuffix(strings.TrimSuffix(name, ".json"), ".td")
	return base + ".grant.json", nil
}

// replaceFile writes a file that others may read, as a whole: after an interruption it is the old one or the new one.
func replaceFile(file string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(file), ".grant-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error counts
	}
	return err
}
