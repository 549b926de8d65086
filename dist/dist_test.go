package main

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// made returns the folder of a release (LMOSD_DIST), which CI made before.
func made(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("LMOSD_DIST")
	switch {
	case dir == "" && os.Getenv("CI") != "":
		t.Fatal("LMOSD_DIST names no release")
	case dir == "":
		t.Skip("LMOSD_DIST names no release: make dist")
	}
	return dir
}

// one returns the file of a release that matches a pattern.
func one(t *testing.T, pattern string) string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(made(t), pattern))
	if err != nil || len(list) != 1 {
		t.Fatalf("%s: %v, %v", pattern, list, err)
	}
	return list[0]
}

// output runs a program that Debian has.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	var b bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &b, &b
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, b.String())
	}
	return b.String()
}

var packaged = []string{"/etc/lmosd/lmosd.yaml", "/usr/bin/lmosd", "/usr/lib/systemd/system/lmosd.service", "/usr/lib/systemd/user/lmosd.service",
	"/usr/lib/sysusers.d/lmosd.conf", "/usr/share/bash-completion/completions/lmosd", "/usr/share/doc/lmosd/THIRD-PARTY-LICENSES",
	"/usr/share/doc/lmosd/copyright", "/usr/share/fish/vendor_completions.d/lmosd.fish", "/usr/share/man/man1/lmosd.1.gz",
	"/usr/share/man/man1/lmosd-call.1.gz", "/usr/share/man/man7/lmosd-exit-codes.7.gz"}

func TestDebianPackages(t *testing.T) {
	t.Parallel()
	for _, arch := range []string{"amd64", "arm64"} {
		path := one(t, "*_"+arch+".deb")
		list := output(t, "dpkg-deb", "-c", path)
		for _, name := range append(packaged, "/usr/share/zsh/vendor-completions/_lmosd") {
			if !strings.Contains(list, " ."+name+"\n") {
				t.Errorf("%s is not in %s", name, path)
			}
		}
		for line := range strings.Lines(list) {
			if !strings.Contains(line, "root/root") {
				t.Errorf("the owner of %s is not root", line)
			}
		}
		if got := output(t, "dpkg-deb", "-I", path, "conffiles"); got != "/etc/lmosd/lmosd.yaml\n" {
			t.Errorf("configuration files: %q", got)
		}
		if control := output(t, "dpkg-deb", "-f", path); !strings.Contains(control, "Package: lmosd\n") || !strings.Contains(control, "Architecture: "+arch+"\n") ||
			strings.Contains(control, "\nDepends:") {
			t.Errorf("control: %s", control)
		}
	}
}

func TestRedHatPackages(t *testing.T) {
	t.Parallel()
	for _, arch := range []string{"x86_64", "aarch64"} {
		path := one(t, "*."+arch+".rpm")
		lines := strings.Split(output(t, "rpm", "-qpl", path), "\n")
		for _, name := range append(packaged, "/usr/share/zsh/site-functions/_lmosd") {
			if !slices.Contains(lines, name) {
				t.Errorf("%s is not in %s", name, path)
			}
		}
		if got := output(t, "rpm", "-qpc", path); got != "/etc/lmosd/lmosd.yaml\n" {
			t.Errorf("configuration files: %q", got)
		}
		if got := output(t, "rpm", "-qp", "--queryformat", "%{NAME} %{ARCH} %{LICENSE} %{BUILDHOST}", path); got != "lmosd "+arch+" Apache-2.0 localhost" {
			t.Errorf("got %s", got)
		}
		output(t, "rpm", "-K", "--nosignature", path)
	}
}

// The archives, the sums, the bills and the licenses are complete, for each platform.
func TestReleaseIsComplete(t *testing.T) {
	t.Parallel()
	dir := made(t)
	check := exec.Command("sha256sum", "-c", "--strict", "SHA256SUMS")
	check.Dir = dir
	if out, err := check.CombinedOutput(); err != nil || strings.Count(string(out), ": OK\n") != 10 {
		t.Errorf("%v\n%s", err, out)
	}
	for _, p := range []string{"linux_amd64", "linux_arm64", "darwin_arm64"} {
		archive := output(t, "tar", "-tzf", one(t, "*_"+p+".tar.gz"))
		for _, name := range []string{"/lmosd", "/LICENSE", "/THIRD-PARTY-LICENSES", "/README.md", "/lmosd.yaml", "/man/man1/lmosd.1.gz", "/completions/_lmosd"} {
			if !strings.Contains(archive, p+name+"\n") {
				t.Errorf("%s is not in the archive of %s", name, p)
			}
		}
		third := output(t, "tar", "-xzOf", one(t, "*_"+p+".tar.gz"), "--wildcards", "*/THIRD-PARTY-LICENSES")
		list, err := modules(filepath.Join(dir, "bin", "lmosd_"+p))
		if err != nil || len(list) < 50 {
			t.Fatalf("%d modules, %v", len(list), err)
		}
		b, err := os.ReadFile(one(t, "*_"+p+".cdx.json"))
		var d document
		if err != nil || json.Unmarshal(b, &d) != nil || d.SpecVersion != "1.6" || len(d.Components) != len(list)+1 {
			t.Fatalf("%s: %d components of %d modules, %v", p, len(d.Components), len(list), err)
		}
		for _, m := range list {
			if !strings.Contains(third, "\n"+m.Path+" "+m.Version+", ") {
				t.Errorf("%s has no license", m.Path)
			}
			if !slices.ContainsFunc(d.Components, func(c component) bool { return c.URL == packageURL(m.Path, m.Version) }) {
				t.Errorf("%s is not in the bill", m.Path)
			}
		}
		for _, script := range []string{"preact", "d3-force", "Go (go.dev)"} {
			if !strings.Contains(third, "\n"+script) {
				t.Errorf("%s has no license", script)
			}
		}
	}
}

// TestInstalledPackage installs the package in a folder that has nothing but a shell, runs the program there, and removes it.
func TestInstalledPackage(t *testing.T) {
	t.Parallel()
	path := one(t, "*_amd64.deb")
	if os.Geteuid() != 0 {
		t.Skip("dpkg changes its root folder, which only root can")
	}
	root := t.TempDir()
	for _, dir := range []string{"bin", "dev", "proc/self", "tmp", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/lmosd"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"var/lib/dpkg/status", "dev/null"} {
		if err := os.WriteFile(filepath.Join(root, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// In place of /proc, which only a mount gives: the demo starts its own program.
	if err := os.Symlink("/usr/bin/lmosd", filepath.Join(root, "proc/self/exe")); err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq("/bin/sh " + output(t, "ldd", "/bin/sh")) { // the shell and its libraries
		if strings.HasPrefix(name, "/") {
			output(t, "cp", "-L", "--parents", name, root)
		}
	}
	dpkg := func(args ...string) string {
		return output(t, "dpkg", append([]string{"--root=" + root, "--log=/dev/null"}, args...)...)
	}
	in := func(args ...string) string {
		return output(t, "chroot", append([]string{root, "/usr/bin/lmosd", "--data-dir", "/tmp/lmosd"}, args...)...)
	}
	dpkg("-i", path)
	if got := dpkg("--status", "lmosd"); !strings.Contains(got, "\nStatus: install ok installed\n") {
		t.Errorf("got %s", got)
	}
	version := output(t, "dpkg-deb", "-f", path, "Version")
	if got := in("version", "-o", "name"); strings.ReplaceAll(got, "-", "~") != strings.ReplaceAll(version, "-", "~") {
		t.Errorf("the program has the version %q, the package %q", got, version)
	}
	in("config", "validate", "/etc/lmosd/lmosd.yaml")
	if got := in("demo"); !strings.Contains(got, "9 of 9 steps passed") {
		t.Errorf("the demo prints %s", got)
	}
	if err := os.WriteFile(filepath.Join(root, "var/lib/lmosd/identity.pem"), []byte("key"), 0o600); err != nil {
		t.Fatal(err)
	}
	dpkg("--remove", "lmosd")
	if _, err := os.Stat(filepath.Join(root, "etc/lmosd/lmosd.yaml")); err != nil {
		t.Errorf("the removal took the configuration: %v", err)
	}
	if got := dpkg("--purge", "lmosd"); !strings.Contains(got, "/var/lib/lmosd has the key of the node and was kept") {
		t.Errorf("the purge prints %s", got)
	}
	var left []string
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, _ error) error {
		if strings.Contains(d.Name(), "lmosd") || d.Name() == "identity.pem" {
			left = append(left, strings.TrimPrefix(path, root))
		}
		return nil
	})
	if want := []string{"/var/lib/lmosd", "/var/lib/lmosd/identity.pem"}; !slices.Equal(left, want) {
		t.Errorf("left: %v, want %v", left, want)
	}
}

func TestAModuleWithoutLicenseIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "NOTICE"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := appendLicenses(&bytes.Buffer{}, "example.com/m v1.0.0", dir); err == nil || err.Error() != "example.com/m v1.0.0 has no license file" {
		t.Errorf("got %v", err)
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for version, ok := range map[string]bool{"1.2.3": true, "0.0.0-20261129222213-073b2fbe0000": true, "1.2.3-rc.1+x": true, "": false, "1.2": false, "v1.2.3": false, "1.2.3 x": false} {
		if err := (&release{version: version}).check(); (err == nil) != ok {
			t.Errorf("%q: %v", version, err)
		}
	}
}

func TestEveryKeyOfTheSampleIsAComment(t *testing.T) {
	t.Parallel()
	if got := string(commented([]byte("# About a.\na:\n  # b\n  b: 1\n\nc: 2\n"))); got != "# About a.\n#a:\n#  # b\n#  b: 1\n\n#c: 2\n" {
		t.Errorf("got %q", got)
	}
}

func TestArchivesAreEqual(t *testing.T) {
	t.Parallel()
	r := &release{date: time.Unix(1767225600, 0)}
	var got [2][]byte
	for i := range got {
		path := filepath.Join(t.TempDir(), "a.tar.gz")
		if err := r.archive(path, "a", []file{{archived: "x", data: []byte("x"), mode: 0o755}}); err != nil {
			t.Fatal(err)
		}
		got[i], _ = os.ReadFile(path)
	}
	if len(got[0]) == 0 || !bytes.Equal(got[0], got[1]) {
		t.Error("the archives differ")
	}
}
