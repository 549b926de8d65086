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

// reasons say what the largest modules are for.
var reasons = map[string]string{
	"github.com/lmosd/lmosd":                    "the project",
	"the standard library and the runtime":      "Go",
	"github.com/cockroachdb/pebble/v2":          "the store",
	"github.com/cockroachdb/errors":             "errors of Pebble",
	"github.com/gogo/protobuf":                  "errors of Pebble",
	"github.com/libp2p/go-libp2p":               "connections between nodes",
	"github.com/quic-go/quic-go":                "QUIC between nodes",
	"github.com/libp2p/go-libp2p-asn-util":      "the DHT: peers of many networks, by a table of them",
	"github.com/libp2p/go-libp2p-kad-dht":       "the DHT",
	"github.com/libp2p/go-libp2p-kbucket":       "the routing table of the DHT",
	"github.com/libp2p/go-libp2p-pubsub":        "gossip",
	"github.com/decred/dcrd/dcrec/secp256k1/v4": "keys of libp2p, keys of credentials",
	"github.com/btcsuite/btcd":                  "secp256k1 keys of legacy credentials",
	"google.golang.org/protobuf":                "messages of libp2p, A2A and OpenTelemetry",
	"github.com/itchyny/gojq":                   "--jq",
	"github.com/pion/dtls/v3":                   "CoAP over DTLS",
	"golang.org/x/text":                         "normal forms of names and addresses (Unicode)",
	"golang.org/x/crypto":                       "encryption of connections and of keys",
	"github.com/goccy/go-yaml":                  "configuration and access rules, with the places of their tokens",
	"go.yaml.in/yaml/v3":                        "OpenAPI documents in YAML",
	"github.com/miekg/dns":                      "mDNS and DNS-SD",
	"github.com/mochi-mqtt/server/v2":           "the MQTT broker in the program",
	"github.com/eclipse/paho.golang":            "MQTT 5",
	"github.com/eclipse/paho.mqtt.golang":       "MQTT 3.1.1",
	"github.com/cedar-policy/cedar-go":          "access rules in Cedar",
	"github.com/klauspost/compress":             "zstd of descriptions",
	"github.com/piprate/json-gold":              "JSON-LD of legacy credentials",
	"github.com/prometheus/client_golang":       "metrics",
	"go.mau.fi/util":                            "names that look alike",
	"go.uber.org/zap":                           "logs of libp2p",
	"github.com/fxamacker/cbor/v2":              "CBOR of messages between nodes",
	"github.com/ipld/go-ipld-prime":             "the DHT (IPNS)",
	"github.com/go-jose/go-jose/v3":             "tokens of identity providers",
	"github.com/segmentio/encoding":             "JSON of the MCP library",
}

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
	p.table("module | kB | code | tables of the code | data | for")
	row := func(name string, s share, reason string) {
		p.row("%s | %d | %d | %d | %d | %s", name, s.total()/1000, s.code/1000, s.tables/1000, s.data/1000, reason)
	}
	var rest, all share
	for i, name := range names {
		all.add(*sizes[name])
		if i < largest {
			if reasons[name] == "" {
				return fmt.Errorf("%s is one of the largest modules: write into reasons what it is for", name)
			}
			row(name, *sizes[name], reasons[name])
		} else {
			rest.add(*sizes[name])
		}
	}
	row(fmt.Sprintf("%d others", max(len(names)-largest, 0)), rest, "")
	row("all", all, "")
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
