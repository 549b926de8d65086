package sdk

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testprogram"
)

// helloAgent and helloClient are an agent and a client that import an installed package.
const (
	pythonAgent = `import lmosd
agent = lmosd.Agent("hello")
@agent.action
def greet(name: str) -> str:
    return "Hello, " + name
agent.run()
`
	pythonClient = `import lmosd
print(lmosd.call("hello", "greet", name="Ada"), lmosd.__file__)
`
	jsAgent = `import { agent } from 'lmosd'
await agent('hello').action('greet', { name: 'string' }, ({ name }) => 'Hello, ' + name, { output: 'string' }).run()
`
	jsClient = `import { call } from 'lmosd'
console.log(await call('hello', 'greet', { name: 'Ada' }), import.meta.resolve('lmosd'))
`
)

// pythonWith returns a Python that has the modules, that of the system before others: its packages are those of the distribution. The Python
// before it in the path may have none.
func pythonWith(t *testing.T, modules ...string) string {
	t.Helper()
	testprogram.Path(t, "python3")
	for _, python := range []string{"/usr/bin/python3", "python3"} {
		if exec.Command(python, "-c", "import "+strings.Join(modules, ", ")).Run() == nil {
			return python
		}
	}
	testprogram.Missing(t, fmt.Errorf("python3 has no modules %s", strings.Join(modules, ", ")))
	return ""
}

// copied returns a copy of a folder, without links.
func copied(t *testing.T, from string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// does runs a program in dir to its end, and returns its output.
func does(t *testing.T, dir string, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

// greets runs the agent and the client with an interpreter in dir, and returns what the client prints. The agent ends on Ctrl-C without a word.
func greets(t *testing.T, dir, interpreter, agent, client string) string {
	t.Helper()
	h := newHost(t, "")
	run := exec.Command(interpreter, agent)
	run.Dir, run.Env = dir, append(os.Environ(), h.env(h.api)...)
	var said strings.Builder
	run.Stdout, run.Stderr = &said, &said
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		run.Process.Signal(os.Interrupt)
		err := run.Wait()
		if s, ok := run.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() && s.Signal() == syscall.SIGINT {
			err = nil
		}
		if err != nil || said.Len() > 0 {
			t.Errorf("the agent ended with %v: %s", err, said.String())
		}
	})
	until(t, "the agent is there", func() error {
		_, _, err := h.client.Call(t.Context(), "hello", "greet", "", []byte(`{"name":"x"}`))
		if e := interact.AsError(err); e != nil {
			return e
		}
		return nil
	})
	return does(t, dir, h.env(h.api), interpreter, client)
}

// TestPythonPackage: the package is built with the tools of the distribution, and installed without a network.
func TestPythonPackage(t *testing.T) {
	t.Parallel()
	python := pythonWith(t, "build", "setuptools", "wheel", "venv", "ensurepip")
	source, venv := copied(t, "python"), filepath.Join(t.TempDir(), "venv")
	does(t, source, nil, python, "-m", "build", "--no-isolation", "--outdir", "dist", ".")
	built, err := filepath.Glob(filepath.Join(source, "dist", "*"))
	if err != nil || len(built) != 2 || !strings.HasSuffix(built[0], "-py3-none-any.whl") || !strings.HasSuffix(built[1], ".tar.gz") {
		t.Fatalf("built %v, %v", built, err)
	}
	does(t, source, nil, python, "-m", "venv", venv)
	python = filepath.Join(venv, "bin", "python")
	dir := t.TempDir()
	write(t, dir, "hello.py", pythonAgent)
	write(t, dir, "ask.py", pythonClient)
	does(t, dir, nil, python, "-m", "pip", "install", "--no-index", "--disable-pip-version-check", built[0])
	got := greets(t, dir, python, "hello.py", "ask.py")
	if !strings.HasPrefix(got, "Hello, Ada "+venv) {
		t.Errorf("the client printed %s", got)
	}
	typed := does(t, dir, nil, python, "-c", "import importlib.resources as r, lmosd; print((r.files(lmosd) / 'py.typed').is_file())")
	if typed != "True\n" {
		t.Error("the package has no py.typed")
	}
}

// TestPythonAnnotations: the library and a program that uses it pass a strict type checker for the oldest supported Python.
func TestPythonAnnotations(t *testing.T) {
	t.Parallel()
	mypy := testprogram.Path(t, "mypy")
	args := []string{mypy, "--strict", "--python-version", "3.9", "--cache-dir", t.TempDir()}
	does(t, ".", nil, append(args, "python/lmosd")...)
	does(t, ".", []string{"MYPYPATH=python"}, append(args, "testdata/typed.py")...)
}

// TestJavaScriptPackage: the package is packed, and installed without a network.
func TestJavaScriptPackage(t *testing.T) {
	t.Parallel()
	npm, node := testprogram.Path(t, "npm"), testprogram.Path(t, "node")
	source, dir := copied(t, "js"), t.TempDir()
	offline := []string{"npm_config_offline=true", "npm_config_audit=false", "npm_config_fund=false", "npm_config_cache=" + t.TempDir(),
		"npm_config_update_notifier=false"}
	does(t, source, offline, npm, "pack", "--silent")
	packed, err := filepath.Glob(filepath.Join(source, "lmosd-*.tgz"))
	if err != nil || len(packed) != 1 {
		t.Fatalf("packed %v, %v", packed, err)
	}
	files := strings.Fields(does(t, source, nil, "tar", "tzf", packed[0]))
	slices.Sort(files)
	want := []string{"package/README.md", "package/lmosd.d.mts", "package/lmosd.mjs", "package/package.json"}
	if !slices.Equal(files, want) {
		t.Errorf("the package has %v, want %v", files, want)
	}
	write(t, dir, "package.json", `{"name":"hello","private":true}`)
	write(t, dir, "hello.mjs", jsAgent)
	write(t, dir, "ask.mjs", jsClient)
	does(t, dir, offline, npm, "install", packed[0])
	got := greets(t, dir, node, "hello.mjs", "ask.mjs")
	if !strings.HasPrefix(got, "Hello, Ada file://"+dir+"/node_modules/lmosd/lmosd.mjs") {
		t.Errorf("the client printed %s", got)
	}
}

// TestTypeScript: a program that uses the library compiles, and misuse does not; the types have the exports of the library.
func TestTypeScript(t *testing.T) {
	t.Parallel()
	node := testprogram.Modules(t, "../interop")
	const tsc = "../interop/node_modules/typescript/bin/tsc"
	does(t, ".", nil, node, tsc, "-p", "testdata/tsconfig.json")
	got := does(t, ".", nil, node, "--input-type=module", "-e", `import { readFileSync } from 'node:fs'
import * as all from './js/lmosd.mjs'
const types = readFileSync('js/lmosd.d.mts', 'utf8').matchAll(/^export (?:class|const|function) (\w+)/gm)
console.log(String(Object.keys(all).sort()) === String([...types].map((m) => m[1]).sort()), Object.keys(all))`)
	if !strings.HasPrefix(got, "true") {
		t.Errorf("lmosd.d.mts has other exports than lmosd.mjs: %s", got)
	}
}

// TestVersionsAreEqual: the packages have one version, which is the tag of a commit that is released.
func TestVersionsAreEqual(t *testing.T) {
	t.Parallel()
	versions := map[string]string{}
	for file, before := range map[string]string{"python/pyproject.toml": `version = "`, "js/package.json": `"version": "`} {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(raw), before)
		versions[file], _, _ = strings.Cut(rest, `"`)
	}
	want := versions["js/package.json"]
	tag, err := exec.Command("git", "describe", "--tags", "--match", "v[0-9]*", "--exact-match", "HEAD").Output()
	if err == nil { // else the commit is not released, or this is no checkout
		want = strings.TrimPrefix(strings.TrimSpace(string(tag)), "v")
	}
	for file, version := range versions {
		if version == "" || version != want {
			t.Errorf("%s has version %q, want %q", file, version, want)
		}
	}
}

// TestNoNode: without a node a program prints one line, and exits with 3; a program that catches the error goes on.
func TestNoNode(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "lmosd.sock") // of a node that was killed
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	want := "lmosd: no node answers at " + socket + ": connection refused (LMOS-3001); start one: lmosd run\n"
	env := []string{"LMOSD_NODE=" + socket, "PYTHONPATH=python", "PYTHONDONTWRITEBYTECODE=1"}
	const imports = "import { agent, call, NotRunning } from './js/lmosd.mjs'\n"
	for name, args := range map[string][]string{
		"python agent":  {"python3", "-c", "import lmosd; lmosd.Agent('a').run()"},
		"python start":  {"python3", "-c", "import lmosd; lmosd.Agent('a').start()"},
		"python client": {"python3", "-c", "import lmosd; lmosd.call('a', 'b')"},
		"python caught": {"python3", "-c", "import lmosd\ntry: lmosd.call('a', 'b')\nexcept lmosd.NotRunning as e: print('caught', e.code)"},
		"python other":  {"python3", "-c", "import lmosd\ntry: lmosd.call('a', 'b')\nexcept lmosd.Error: pass\nraise ValueError('other')"},
		"js agent":      {"node", "--input-type=module", "-e", imports + "await agent('a').run()"},
		"js start":      {"node", "--input-type=module", "-e", imports + "await agent('a').start()"},
		"js unawaited":  {"node", "--input-type=module", "-e", imports + "agent('a').run()"},
		"js client":     {"node", "--input-type=module", "-e", imports + "await call('a', 'b')"},
		"js caught":     {"node", "--input-type=module", "-e", imports + "await call('a', 'b').catch((e) => console.log('caught', e instanceof NotRunning && e.code))"},
		"js other":      {"node", "--input-type=module", "-e", imports + "await call('a', 'b').catch(() => {})\nthrow new Error('other')"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testprogram.Path(t, args[0])
			out, err := command(t, env, args...)
			code := 0
			if e := (*exec.ExitError)(nil); errors.As(err, &e) {
				code = e.ExitCode()
			}
			_, kind, _ := strings.Cut(name, " ")
			switch kind {
			case "caught":
				if code != 0 || out != "caught LMOS-3001\n" {
					t.Errorf("exit %d: %s", code, out)
				}
			case "other":
				if code != 1 || !strings.Contains(out, "Error: other") {
					t.Errorf("exit %d: %s", code, out)
				}
			default:
				if code != 3 || out != want {
					t.Errorf("exit %d: %s", code, out)
				}
			}
		})
	}
}
