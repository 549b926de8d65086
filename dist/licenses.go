package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
)

// licenses collects the licenses of the modules in programs.
type licenses struct {
	root string // of this project
}

var (
	licenseFile = regexp.MustCompile(`(?i)^(licen[sc]e|copying|unlicense)`)
	noticeFile  = regexp.MustCompile(`(?i)^(notice|patents)`)
)

// modules returns the modules that are in a program, replacements included.
func modules(binary string) ([]debug.Module, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	var list []debug.Module
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		list = append(list, *m)
	}
	return list, nil
}

// of returns the text of all licenses: of Go, of each module, and of the scripts of the console.
func (l *licenses) of(binary string) ([]byte, error) {
	list, err := modules(binary)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString("Licenses of the libraries that are part of the program lmosd.\n")
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	if err := appendLicenses(&b, "Go (go.dev)", strings.TrimSpace(string(goroot))); err != nil {
		return nil, err
	}
	folders, err := l.folders(list)
	if err != nil {
		return nil, err
	}
	for _, m := range list {
		if err := appendLicenses(&b, m.Path+" "+m.Version, folders[m.Path]); err != nil {
			return nil, err
		}
	}
	if err := l.console(&b); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// folders returns the folders of modules in the cache.
func (l *licenses) folders(list []debug.Module) (map[string]string, error) {
	args := []string{"mod", "download", "-json"}
	for _, m := range list {
		args = append(args, m.Path+"@"+m.Version)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr = l.root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	folders := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var m struct{ Path, Dir string }
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			return folders, nil
		} else if err != nil {
			return nil, err
		}
		folders[m.Path] = m.Dir
	}
}

// appendLicenses writes the licenses and notices in a folder. A folder without a license is an error: the library could not be shipped.
func appendLicenses(b *bytes.Buffer, title, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("the license of %s: %w", title, err)
	}
	licensed := false
	for _, e := range entries {
		isLicense := licenseFile.MatchString(e.Name())
		if e.IsDir() || !isLicense && !noticeFile.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		appendText(b, title+", "+e.Name(), text)
		licensed = licensed || isLicense
	}
	if !licensed {
		return fmt.Errorf("%s has no license file", title)
	}
	return nil
}

func appendText(b *bytes.Buffer, title string, text []byte) {
	fmt.Fprintf(b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), title, bytes.TrimRight(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")), "\n"))
}

// console adds the licenses of the scripts of other projects in the console.
func (l *licenses) console(b *bytes.Buffer) error {
	dir := filepath.Join(l.root, "web", "ui", "vendor")
	scripts, err := filepath.Glob(filepath.Join(dir, "*.js"))
	if err != nil {
		return err
	}
	slices.Sort(scripts)
	for _, script := range scripts {
		name := strings.TrimSuffix(filepath.Base(script), ".js")
		text, err := os.ReadFile(filepath.Join(dir, name+".LICENSE.txt"))
		if err != nil {
			return fmt.Errorf("the license of %s: %w", name, err)
		}
		appendText(b, name+" (in the console)", text)
	}
	return nil
}
