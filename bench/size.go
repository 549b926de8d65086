package main

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// largest is the number of modules that sizeTable names.
const largest = 20

// sizeTable prints the size of the static binary of `make build`, and the part that each of the largest modules has of it.
func sizeTable(ctx context.Context, p plan) error {
	dir, err := os.MkdirTemp("", "bench-size")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	stripped, named := filepath.Join(dir, "lmosd"), filepath.Join(dir, "lmosd-symbols")
	if err := buildLMOSD(ctx, stripped, true); err != nil {
		return err
	}
	if err := buildLMOSD(ctx, named, false); err != nil {
		return err
	}
	info, err := os.Stat(stripped)
	if err != nil {
		return err
	}
	sizes, err := moduleSizes(named)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(sizes))
	for name := range sizes {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(sizes[b].total()-sizes[a].total(), cmp.Compare(a, b)) })
	p.say("The stripped binary has %d bytes, of %d modules:", info.Size(), len(names))
	p.table("module | kB | code | tables of the code | data")
	row := func(name string, s share) {
		p.row("%s | %d | %d | %d | %d", name, s.total()/1000, s.code/1000, s.tables/1000, s.data/1000)
	}
	var rest, all share
	for i, name := range names {
		all.add(*sizes[name])
		if i < largest {
			row(name, *sizes[name])
		} else {
			rest.add(*sizes[name])
		}
	}
	row(fmt.Sprintf("%d others", max(len(names)-largest, 0)), rest)
	row("all", all)
	return nil
}

// buildLMOSD builds the program with the flags of `make build`. Only a binary that is not stripped names its symbols.
func buildLMOSD(ctx context.Context, to string, strip bool) error {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/lmosd/lmosd").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	args := []string{"build", "-C", strings.TrimSpace(string(root)), "-trimpath", "-o", to}
	if strip {
		args = append(args, "-ldflags=-s -w")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/lmosd")...)
	cmd.Env, cmd.Stderr = append(os.Environ(), "CGO_ENABLED=0"), os.Stderr
	return cmd.Run()
}

// A share is what a module has of a binary, in bytes.
type share struct {
	code   int
	tables int // by which the runtime finds the lines, frames and pointers of the code
	data   int // types, texts, tables, embedded files
}

func (s share) total() int { return s.code + s.tables + s.data }

func (s *share) add(t share) {
	s.code += t.code
	s.tables += t.tables
	s.data += t.data
}

// moduleSizes attributes the bytes of a binary for amd64 to its modules. A symbol belongs to the module of its package. Types and texts have
// no symbols: each is as long as the distance to the next that is referred to, and belongs to the module of the first symbol that refers to
// it. The tables of the code are shared by size.
func moduleSizes(path string) (map[string]*share, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return nil, err
	}
	modules := []string{info.Main.Path}
	for _, d := range info.Deps {
		modules = append(modules, d.Path)
	}
	slices.SortFunc(modules, func(a, b string) int { return len(b) - len(a) }) // the longest prefix first
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(symbols, func(a, b elf.Symbol) int { return cmp.Compare(a.Value, b.Value) })
	b := binaryFile{modules: modules, sizes: map[string]*share{}}
	var tables uint64
	for _, s := range f.Sections {
		switch {
		case s.Name == ".gopclntab":
			tables += s.Size
		case s.Type != elf.SHT_PROGBITS || s.Flags&elf.SHF_ALLOC == 0:
		default:
			data, err := s.Data()
			if err != nil {
				return nil, err
			}
			b.sections = append(b.sections, elfSection{s, data})
		}
	}
	b.attribute(symbols)
	if t := b.sizes[funcData]; t != nil {
		tables += uint64(t.data)
		delete(b.sizes, funcData)
	}
	code := 0
	for _, s := range b.sizes {
		code += s.code
	}
	for _, s := range b.sizes {
		s.tables = int(float64(tables) * float64(s.code) / float64(max(code, 1)))
	}
	return b.sizes, nil
}

const (
	funcData = "go:func.*" // the symbol with the frames and pointers of all functions
	standard = "the standard library and the runtime"
)

type elfSection struct {
	*elf.Section
	data []byte
}

type binaryFile struct {
	modules  []string
	sections []elfSection
	sizes    map[string]*share
}

func (b *binaryFile) share(name string) *share {
	if b.sizes[name] == nil {
		b.sizes[name] = &share{}
	}
	return b.sizes[name]
}

// attribute adds up the sizes of the symbols, and then of what the gaps between them hold.
func (b *binaryFile) attribute(symbols []elf.Symbol) {
	readOnly := slices.IndexFunc(b.sections, func(s elfSection) bool { return s.Name == ".rodata" })
	if readOnly < 0 {
		return
	}
	ro := b.sections[readOnly]
	named := make([]bool, len(ro.data)) // the bytes of symbols
	owners := map[int]string{}          // of the offsets that are referred to
	for _, s := range symbols {
		at := slices.IndexFunc(b.sections, func(c elfSection) bool { return s.Value >= c.Addr && s.Value+s.Size <= c.Addr+c.Size })
		if at < 0 || s.Size == 0 {
			continue
		}
		in := b.sections[at]
		offset := int(s.Value - in.Addr)
		data := in.data[offset : offset+int(s.Size)]
		name := b.module(s.Name)
		code := in.Flags&elf.SHF_EXECINSTR != 0
		if code {
			b.share(name).code += len(data)
		} else {
			b.share(name).data += len(data)
		}
		if at == readOnly {
			for i := range data {
				named[offset+i] = true
			}
		}
		for _, to := range references(data, s.Value, code) {
			if i := int(to - ro.Addr); to >= ro.Addr && i < len(ro.data) && owners[i] == "" {
				owners[i] = name
			}
		}
	}
	owner := standard
	for i := range ro.data {
		if o := owners[i]; o != "" {
			owner = o
		}
		if !named[i] {
			b.share(owner).data++
		}
	}
}

// references returns the addresses in data, which is at the address at: of LEA instructions relative to the program counter, or of the
// headers of texts. A word alone can be a number that looks like an address.
func references(data []byte, at uint64, code bool) (all []uint64) {
	if !code {
		for i := int(-at & 7); i+16 <= len(data); i += 8 {
			if n := binary.LittleEndian.Uint64(data[i+8:]); n > 0 && n < 1<<24 {
				all = append(all, binary.LittleEndian.Uint64(data[i:]))
			}
		}
		return all
	}
	for i := 0; i+7 <= len(data); i++ {
		if data[i]&0xfb == 0x48 && data[i+1] == 0x8d && data[i+2]&0xc7 == 0x05 {
			all = append(all, at+uint64(i+7)+uint64(int32(binary.LittleEndian.Uint32(data[i+3:]))))
		}
	}
	return all
}

// module returns the module of a symbol.
func (b *binaryFile) module(symbol string) string {
	if symbol == funcData {
		return funcData
	}
	name := strings.TrimLeft(symbol, "*")
	for _, prefix := range []string{"type:.eq.", "type:.hash.", "go:itab.", "go:struct."} {
		name = strings.TrimLeft(strings.TrimPrefix(name, prefix), "*[]")
	}
	name, _, _ = strings.Cut(name, "[") // type arguments
	if plain, err := url.PathUnescape(name); err == nil {
		name = plain
	}
	for _, m := range b.modules {
		if rest, ok := strings.CutPrefix(name, m); ok && (rest == "" || rest[0] == '/' || rest[0] == '.') {
			return m
		}
	}
	if strings.HasPrefix(name, "main.") {
		return b.modules[slices.Index(b.modules, "github.com/lmosd/lmosd")]
	}
	return standard
}
