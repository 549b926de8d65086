package agent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestDescriptionFileIsReplacedWhole(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "weather.td.json")
	for _, text := range []string{"first, and longer", "second"} {
		if err := ready(file, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(file); string(got) != text {
			t.Errorf("got %q, want %q", got, text)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || !slices.Equal(names(left), []string{"weather.td.json"}) {
		t.Errorf("left behind: %v, %v", names(left), err)
	}
}

func names(entries []os.DirEntry) []string {
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}
