package configs

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/interact"
)

const envPrefix = "LMOSD_"

// LoadOptions are the layers of a configuration. The zero value loads the defaults.
type LoadOptions struct {
	// File is the configuration file; empty means none. The files conf.d/*.yaml next to it are read after it, sorted by name.
	File string
	// Texts replace the contents of files, by path: a change is checked before it is written.
	Texts map[string][]byte
	// Env is the environment, "NAME=value" each, as in os.Environ. LMOSD_HTTP__LISTEN sets http.listen; lists are separated by commas.
	Env []string
	// Flags holds the values of flags by key ("http.listen"). Lists are repeated flags or separated by commas.
	Flags map[string][]string
}

// Load reads all layers and checks the result. It reads only o and the files in o. The error is an [*Error] with all problems.
func Load(o LoadOptions) (*Config, error) {
	var ps problems
	var layers []setting
	for _, read := range []func(*problems) []setting{o.files, o.env, o.flags} {
		layers = append(layers, read(&ps)...)
	}
	c := Default()
	c.places = map[string]place{}
	c.apply(profileOf(layers), &ps)
	c.apply(layers, &ps)
	c.resolve(o.Env)
	c.check(&ps)
	if err := ps.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// files reads the file and its fragments.
func (o LoadOptions) files(ps *problems) []setting {
	if o.File == "" {
		return nil
	}
	list := o.readFile(o.File, ps)
	// Glob fails only on a bad pattern, and a folder with such a name has no fragments.
	fragments, _ := filepath.Glob(filepath.Join(filepath.Dir(o.File), "conf.d", "*.yaml"))
	slices.Sort(fragments)
	for _, name := range fragments {
		list = append(list, o.readFile(name, ps)...)
	}
	return list
}

func (o LoadOptions) readFile(name string, ps *problems) []setting {
	if text, ok := o.Texts[name]; ok {
		return readYAML(name, text, ps)
	}
	source, err := os.ReadFile(name)
	if err != nil {
		p := ps.add(interact.ConfigFile, place{text: name}, "", "check the path and the permissions", "the file cannot be read: %v", cause(err))
		if errors.Is(err, fs.ErrNotExist) {
			p.Hint, p.Next = "write one with the defaults", interact.Next(interact.StepConfig, name)
		}
		return nil
	}
	return readYAML(name, source, ps)
}

// cause returns err without the name of the file, which the message has.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// reserved are variables with the prefix that are not keys.
var reserved = []string{"LMOSD_NODE", "LMOSD_TOKEN", "LMOSD_CONFIG", "LMOSD_DATA_DIR", "LMOSD_UI_DIR", "LMOSD_CHROME",
	"LMOSD_FORCE_TTY", "LMOSD_TRIAL"}

func (o LoadOptions) env(ps *problems) []setting {
	shape := shape()
	var list []setting
	for _, variable := range o.Env {
		name, value, _ := strings.Cut(variable, "=")
		words, ours := strings.CutPrefix(name, envPrefix)
		if !ours || slices.Contains(reserved, name) {
			continue
		}
		key := strings.ToLower(strings.ReplaceAll(words, "__", "."))
		at := place{text: "env " + name}
		switch f, known := shape[key]; {
		case known && f.value.IsValid():
			list = append(list, setting{key, elements(f, value), at})
		case retired[key] != nil:
			ps.add(interact.ConfigUnknown, at, key, retired[key](splitList(value)), "the key %s does not exist any more", key)
		case strings.Contains(words, "__"):
			ps.add(interact.ConfigUnknown, at, key, didYouMean(name, envNames(), ""),
				"no key has this variable")
		}
		// Other names are ignored: Kubernetes sets LMOSD_PORT and LMOSD_SERVICE_HOST for a service named lmosd.
	}
	return list
}

func envNames() []string {
	var names []string
	for f := range Default().fields() {
		names = append(names, Key{Name: f.key}.Env())
	}
	return names
}

// elements splits the text of a list at commas; other values are one element.
func elements(f field, text string) []string {
	if f.kind() != "list" {
		return []string{text}
	}
	return splitList(text)
}

// splitList returns the elements of a list with commas.
func splitList(text string) []string {
	list := []string{}
	for e := range strings.SplitSeq(text, ",") {
		if e = strings.TrimSpace(e); e != "" {
			list = append(list, e)
		}
	}
	return list
}

func (o LoadOptions) flags(ps *problems) []setting {
	shape := shape()
	var list []setting
	for _, key := range slices.Sorted(maps.Keys(o.Flags)) {
		given := o.Flags[key]
		at := place{text: "flag --" + key}
		f, known := shape[key]
		if !known || !f.value.IsValid() {
			ps.add(interact.ConfigUnknown, at, key, "", "no key has this flag")
			continue
		}
		var values []string
		for _, text := range given {
			values = append(values, elements(f, text)...)
		}
		list = append(list, setting{key, values, at})
	}
	return list
}

// profileOf returns the settings of the selected profile, and reports an unknown one at its origin.
func profileOf(layers []setting) []setting {
	name := "default"
	for _, s := range layers {
		if s.key == "profile" && len(s.values) == 1 {
			name = s.values[0]
		}
	}
	p, _ := findProfile(name)
	return p.settings()
}

// apply sets values in order and records their origins.
func (c *Config) apply(list []setting, ps *problems) {
	for _, s := range list {
		f, _ := c.field(s.key)
		err := f.set(s.values)
		if err == nil {
			c.places[s.key] = s.at
			continue
		}
		hint := ""
		var choice *choiceError
		if errors.As(err, &choice) {
			hint = didYouMean(choice.given, choice.known, hint)
		}
		ps.add(interact.ConfigInvalid, s.at, s.key, hint, "%s: %v", s.key, err)
	}
}

// resolve sets the values that depend on the environment.
func (c *Config) resolve(env []string) {
	c.credentials = lookup(env, "CREDENTIALS_DIRECTORY")
	if c.Node.DataDir != "" {
		return
	}
	c.Node.DataDir = DataDir(env)
	if lookup(env, "LMOSD_DATA_DIR") != "" {
		c.places["node.data_dir"] = place{text: "env LMOSD_DATA_DIR"}
	}
}

// Origin returns the origin of the value of key: "default", "profile lan", "/etc/lmosd/lmosd.yaml:12",
// "env LMOSD_HTTP__LISTEN" or "flag --http.listen".
func (c *Config) Origin(key string) string {
	if p, ok := c.places[key]; ok {
		return p.origin()
	}
	return "default"
}

// Explicit reports whether the value of key was set, other than by the default or the profile.
func (c *Config) Explicit(key string) bool {
	p, ok := c.places[key]
	return ok && !strings.HasPrefix(p.text, "profile ")
}
