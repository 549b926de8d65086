package atomicfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	check := func(content string, mode fs.FileMode) {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content || info.Mode() != mode {
			t.Errorf("%q with mode %v, %v; want %q with %v", got, info.Mode(), err, content, mode)
		}
		if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
			t.Errorf("the folder has %v, %v; want one file", all, err)
		}
	}
	if err := Write(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	check("new", 0o600)
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	before, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	if err := Write(path, []byte("replaced"), 0o600); err != nil {
		t.Fatal(err)
	}
	check("replaced", 0o640)
	old := make([]byte, 8)
	if n, _ := before.Read(old); string(old[:n]) != "new" {
		t.Errorf("a reader of the old file sees %q", old[:n])
	}
	if err := Write(filepath.Join(dir, "absent", "a"), nil, 0o600); err == nil {
		t.Error("a missing folder is not an error")
	}
}
