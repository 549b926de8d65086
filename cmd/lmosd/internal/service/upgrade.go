package service

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/configcmd"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/atomicfile"
	"github.com/lmosd/lmosd/internal/storage"
	"github.com/lmosd/lmosd/testnet"
)

// NewUpgradeCommand returns lmosd upgrade.
func NewUpgradeCommand(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:         "upgrade",
		Short:       "try another version of lmosd",
		Long:        "Tries another version of lmosd before you install it. lmosd downloads nothing.",
		Example:     "  lmosd upgrade check ./lmosd-new\n  lmosd upgrade check ./lmosd-new --data-dir /var/lib/lmosd",
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd service, lmosd version"),
		Args:        cli.Subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "check <binary>",
		Short: "try a version on a copy of the data folder",
		Long: "Copies the data folder, of a node that runs or not, and starts this version and\n" +
			"the other one on the copy, in turn: on loopback, without peers, agents and\n" +
			"requests to other hosts. Compares the identity and the stored agents, and\n" +
			"checks the configuration. Removes the copy. Exit code 1 if a check failed.",
		Example: `  lmosd upgrade check ./lmosd-new
  lmosd upgrade check ./lmosd-new --data-dir /var/lib/lmosd -o json --jq .ok`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd doctor, lmosd service status"),
		Args:        cli.Takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), upgradeLimit)
			defer cancel()
			return checkUpgrade(ctx, c, args[0])
		},
	})
	return cmd
}

// Limits of a check: of all of it, and of one start.
const (
	upgradeLimit = 10 * time.Minute
	startLimit   = 2 * time.Minute
)

// An upgradeCheck is the document of lmosd upgrade check.
type upgradeCheck struct {
	cli.Head
	OK      bool              `json:"ok"`
	Program string            `json:"program"`
	Version string            `json:"version,omitempty"`
	DataDir string            `json:"data_dir"`
	Items   []api.DoctorCheck `json:"items"`
}

// errFailed means that a check failed, and that the ones after it depend on it.
var errFailed = errors.New("a check failed")

func (u *upgradeCheck) add(status, name, text, hint string) {
	u.Items = append(u.Items, api.DoctorCheck{Name: name, Status: status, Text: text, Hint: hint})
}

func (u *upgradeCheck) pass(name, format string, args ...any) {
	u.add(api.CheckPass, name, fmt.Sprintf(format, args...), "")
}

func (u *upgradeCheck) fail(name, text, hint string) error {
	u.OK = false
	u.add(api.CheckFail, name, text, hint)
	return errFailed
}

// checkUpgrade tries a program on a copy of the data folder, and reports each step.
func checkUpgrade(ctx context.Context, c *cli.Console, program string) error {
	conf, err := configcmd.Load(c, nil)
	if err != nil {
		return err
	}
	if program, err = filepath.Abs(program); err != nil {
		return err
	}
	this, err := os.Executable()
	if err != nil {
		return err
	}
	doc := &upgradeCheck{Head: cli.NewHead("UpgradeCheck"), OK: true, Program: program, DataDir: conf.Node.DataDir}
	if err := doc.run(ctx, c, conf, this); err != nil && !errors.Is(err, errFailed) {
		return err
	}
	err = c.Show(cli.View{Doc: doc, Names: cli.Each(doc.Items, func(i api.DoctorCheck) string { return i.Name }),
		People: func(s *terminal.Screen, _ bool) {
			render.Doctor(s, &api.Doctor{OK: doc.OK, Items: doc.Items}, func(hint string, _ []interact.Step) string { return hint })
		}})
	switch {
	case err != nil:
		return err
	case !doc.OK:
		return cli.SilentError(cli.ExitInternal)
	}
	c.Next("lmosd service status   # replace the program, then restart the service")
	return nil
}

// run makes the checks in order.
func (u *upgradeCheck) run(ctx context.Context, c *cli.Console, conf *configs.Config, this string) (err error) {
	if err := u.program(ctx, c); err != nil {
		return err
	}
	configErr := u.config(ctx, c)
	copied, err := u.copy(conf)
	if copied != "" {
		defer func() { err = errors.Join(err, u.remove(copied)) }()
	}
	if err != nil {
		return err
	}
	before, err := try(ctx, c, conf, this, copied)
	if err != nil {
		return u.fail("this version", "it does not start on the copy: "+err.Error(), "mend the data folder first; see lmosd doctor")
	}
	u.pass("this version", "starts on the copy with %s", before)
	after, err := try(ctx, c, conf, u.Program, copied)
	if err != nil {
		return u.fail("new version", "it does not start on the copy: "+err.Error(), "keep the version that runs now")
	}
	u.pass("new version", "starts on the copy with %s", after)
	if before.did == after.did {
		u.pass("identity", "%s", after.did.Short())
	} else {
		err = u.fail("identity", fmt.Sprintf("the DID was %s and is %s", before.did, after.did), "keep the version that runs now")
	}
	if before.agents == after.agents {
		u.pass("agents", "%s", terminal.Count(after.agents, "stored agent", "stored agents"))
	} else {
		err = u.fail("agents", fmt.Sprintf("there were %d stored agents and are %d", before.agents, after.agents), "keep the version that runs now")
	}
	if _, back := try(ctx, c, conf, this, copied); back != nil {
		u.add(api.CheckWarn, "way back", "this version does not start after the new one: "+back.Error(), "copy the data folder before the upgrade")
	} else {
		u.pass("way back", "this version starts after the new one")
	}
	return errors.Join(err, configErr)
}

// program checks that the program is lmosd, and reads its version.
func (u *upgradeCheck) program(ctx context.Context, c *cli.Console) error {
	out, err := command(ctx, c.Env, u.Program, "version", "-o", "json")
	var v api.Version
	if err == nil && (json.Unmarshal(out, &v) != nil || v.Kind != "Version" || v.APIVersion != api.APIVersion) {
		err = errors.New("it is not lmosd")
	}
	if err != nil {
		return u.fail("program", u.Program+" does not run: "+cli.Reason(err).Error(), "name the new binary; it must be executable on this system")
	}
	u.Version = v.Version
	u.pass("program", "lmosd %s", strings.TrimSpace(v.Version+" "+v.Commit))
	return nil
}

// config checks that the new version accepts the configuration.
func (u *upgradeCheck) config(ctx context.Context, c *cli.Console) error {
	args := []string{"config", "validate", "-o", "json"}
	file := cmp.Or(c.Flags.Config, configs.File(c.Env))
	if file != "" {
		args = append(args, file)
	}
	if _, err := command(ctx, c.Env, u.Program, args...); err != nil {
		return u.fail("configuration", err.Error(), "change "+file+" for the new version: its lmosd config describe explains every key")
	}
	u.pass("configuration", "valid: %s", cmp.Or(file, "no file, the defaults"))
	return nil
}

// copy copies the data folder next to it, or to the folder for temporary files if that is not possible, with the key and the access rules if they are
// elsewhere: a trial must not lock or change those of the node. The copy may be incomplete after an error, and is to be removed.
func (u *upgradeCheck) copy(conf *configs.Config) (to string, err error) {
	dir := conf.Node.DataDir
	if !exists(dir) {
		return "", u.fail("copy", "there is no data folder "+dir, "name the folder of the node: --data-dir")
	}
	if to, err = os.MkdirTemp(filepath.Dir(dir), ".lmosd-upgrade-"); err != nil {
		if to, err = os.MkdirTemp("", "lmosd-upgrade-"); err != nil {
			return "", u.fail("copy", "no folder for the copy: "+err.Error(), "name a folder that you can write: TMPDIR")
		}
	}
	size := storage.Size(dir)
	if free, err := storage.FreeOn(to)(); err == nil && free < size+storage.MinFree {
		return to, u.fail("copy", fmt.Sprintf("the copy needs %s, and %s of the disk are free", terminal.Size(int(size+storage.MinFree)),
			terminal.Size(int(free))), "free some space")
	}
	if err = storage.Snapshot(dir, to); err == nil {
		err = copyReferences(conf, to)
	}
	switch {
	case errors.Is(err, storage.ErrBusy):
		return to, u.fail("copy", err.Error(), "try again, or stop the node first")
	case errors.Is(err, os.ErrPermission):
		return to, u.fail("copy", err.Error(), "run the command as the user of the node, or with sudo")
	case err != nil:
		return to, u.fail("copy", err.Error(), "see the permissions and the disk of "+dir)
	}
	if !exists(trialKey(to)) { // a version would make another one
		path, _ := conf.KeyFile()
		return to, u.fail("copy", "there is no key "+path, "if the key is a credential of the service, name a copy of it: LMOSD_NODE__KEY=file:PATH")
	}
	u.pass("copy", "%s of %s", terminal.Size(int(size)), dir)
	return to, nil
}

// trialKey and trialRules return the key and the access rules in the copy.
func trialKey(dir string) string   { return filepath.Join(dir, "identity.pem") }
func trialRules(dir string) string { return filepath.Join(dir, "policy.yaml") }

// copyReferences copies the key and the access rules, with their modes, to the places in the copy that a trial uses. Other files that a configuration
// names are not used in a trial.
func copyReferences(conf *configs.Config, to string) error {
	key, credential := conf.KeyFile()
	rules := conf.PolicyFile()
	files := map[string]string{key: trialKey(to), rules: trialRules(to), strings.TrimSuffix(rules, filepath.Ext(rules)) + ".cedar": filepath.Join(to, "policy.cedar")}
	if next, err := keystore.NextPath(key); err == nil && !credential { // the key that a rotation has begun with
		files[next] = trialKey(to) + ".next"
	}
	for from, to := range files {
		text, err := os.ReadFile(from)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			return err
		}
		mode := os.FileMode(0o600) // of a credential: its group may be able to read it
		if info, err := os.Stat(from); err == nil && !credential {
			mode = info.Mode().Perm()
		}
		if err := atomicfile.Write(to, text, mode); err != nil {
			return err
		}
	}
	return nil
}

// remove removes the copy, which has the key of the node.
func (u *upgradeCheck) remove(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return u.fail("removal", "the copy stays: "+err.Error(), "remove it, because it has the key of the node: rm -r "+terminal.Shell(dir))
	}
	return nil
}

// A trial is what a version found in the copy.
type trial struct {
	did    did.DID
	agents int
	took   time.Duration
}

func (t *trial) String() string {
	return terminal.Count(t.agents, "agent", "agents") + " in " + terminal.Millis(api.Milliseconds(t.took))
}

// try starts a version on the copy at dir, waits until it has loaded what is stored, and stops it. The node has no peers and dials none: it
// has the identity of a node that may run at the same time.
func try(ctx context.Context, c *cli.Console, conf *configs.Config, program, dir string) (_ *trial, err error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	ready, empty := filepath.Join(dir, ".ready"), filepath.Join(dir, ".none.yaml")
	if err := os.WriteFile(empty, []byte("apiVersion: lmosd/v1\n"), 0o600); err != nil { // the real one has agents, and services of other hosts
		return nil, err
	}
	args := []string{"run", "-o", "json", "--config", empty, "--data-dir", dir, "--ready-file", ready, "--profile", "test",
		"--mesh.network", conf.Mesh.Network, "--mesh.filter", "0.0.0.0/0,::/0", "--http.socket", "none", "--node.key", "file:" + trialKey(dir),
		"--trust.policy_file", trialRules(dir), "--node.passphrase", conf.Node.Passphrase, "--storage.engine", conf.Storage.Engine}
	var talk bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Env, cmd.Stderr = isolated(c, dir), &talk
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, cli.Reason(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t := &trial{}
	err = testnet.Until(ctx, "the node serves", func() bool {
		select {
		case exit := <-ended:
			ended <- exit
			return true
		default:
		}
		return t.load(ctx, dir, ready)
	})
	t.took = time.Since(start)
	select {
	case exit := <-ended:
		return nil, explained(talk.Bytes(), cmp.Or(exit, errors.New("it ended")))
	default:
	}
	if cmd.Process.Signal(syscall.SIGTERM) != nil {
		_ = cmd.Process.Kill() // this system has no such signal, or the process has ended
	}
	select {
	case exit := <-ended:
		if err == nil && exit != nil {
			err = fmt.Errorf("it does not end cleanly: %w", explained(talk.Bytes(), exit))
		}
	case <-time.After(30 * time.Second):
		err = errors.Join(err, errors.New("it does not end after SIGTERM"), cmd.Process.Kill())
		<-ended
	}
	return t, err
}

// load reads what the node at a ready file has, and reports whether it has loaded everything.
func (t *trial) load(ctx context.Context, dir, ready string) bool {
	b, err := os.ReadFile(ready)
	var r testnet.Ready
	if err != nil || json.Unmarshal(b, &r) != nil {
		return false
	}
	token, _ := os.ReadFile(filepath.Join(dir, "api.token")) // without it, private agents are not counted
	client, err := api.Dial(r.API, strings.TrimSpace(string(token)))
	if err != nil {
		return false
	}
	defer client.Close()
	s, err := client.Status(ctx)
	if err != nil || s.State == "starting" {
		return false
	}
	t.did, t.agents = s.DID, s.Agents.Local
	return true
}

// trialVariable is the variable of the environment of a node in a trial.
const trialVariable = "LMOSD_TRIAL"

// isolated returns an environment without the settings of the user, in which the node makes no connections. HTTP_PROXY is for versions without
// [TrialDial]; the mesh is closed by mesh.filter.
func isolated(c *cli.Console, home string) []string {
	const nowhere = "http://127.0.0.1:9" // the discard port
	env := []string{"HOME=" + home, "PATH=" + c.Variable("PATH"), "HTTP_PROXY=" + nowhere, "HTTPS_PROXY=" + nowhere, "NO_PROXY=127.0.0.1", trialVariable + "=1"}
	if dir := c.Variable("CREDENTIALS_DIRECTORY"); dir != "" { // of the passphrase
		env = append(env, "CREDENTIALS_DIRECTORY="+dir)
	}
	return env
}

// TrialDial returns the function by which a node in a trial opens connections, which refuses, or nil outside of a trial. In a trial, it also closes
// the resolver of names.
func TrialDial(c *cli.Console) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if c.Variable(trialVariable) == "" {
		return nil
	}
	refuse := func(_ context.Context, _, addr string) (net.Conn, error) {
		return nil, errors.New("a trial makes no connections: " + addr)
	}
	net.DefaultResolver.PreferGo = true
	net.DefaultResolver.Dial = refuse
	return refuse
}

// command runs a program to its end, and returns its standard output.
func command(ctx context.Context, env []string, program string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	var out, talk bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, &out, &talk
	if err := cmd.Run(); err != nil {
		return nil, explained(talk.Bytes(), err)
	}
	return out.Bytes(), nil
}

// explained returns the error that a program with -o json reported, or err with its last line.
func explained(talk []byte, err error) error {
	lines := strings.Split(strings.TrimSpace(string(talk)), "\n")
	last := lines[len(lines)-1]
	var reported struct {
		Error struct {
			Code   string `json:"code"`
			Detail string `json:"detail"`
			Cause  string `json:"cause"`
		} `json:"error"`
	}
	switch {
	case json.Unmarshal([]byte(last), &reported) == nil && reported.Error.Detail != "":
		e := reported.Error
		return errors.New(strings.TrimSuffix(e.Detail+": "+e.Cause, ": ") + " (" + e.Code + ")")
	case last != "":
		return fmt.Errorf("%w: %s", err, terminal.OneLine(last))
	}
	return err
}
