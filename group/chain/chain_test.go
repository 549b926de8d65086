package chain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// A fixture is a chain whose clock advances with each entry.
type fixture struct {
	*Chain
	t    testing.TB
	now  time.Time
	keys map[string]*keystore.Key
}

// begun returns a new group, whose first admin is "ada".
func begun(t testing.TB, o Op) *fixture {
	f := &fixture{t: t, now: noon, keys: map[string]*keystore.Key{}}
	if o.Name == "" {
		o.Name = "claims"
	}
	o.Threshold = max(o.Threshold, 1)
	o.Member.Node = f.id("ada")
	var err error
	if f.Chain, err = New(o, f.key("ada"), f.now); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) key(name string) *keystore.Key {
	if f.keys[name] == nil {
		n := 0
		for _, c := range name {
			n = n*131 + int(c)
		}
		f.keys[name] = didtest.Key(n & 0xffff)
	}
	return f.keys[name]
}

func (f *fixture) id(name string) did.DID { return f.key(name).DID() }

// member returns a member of a role on a node of its own.
func (f *fixture) member(name, role string) Member {
	return Member{DID: f.id(name), Node: f.id(name), Role: role}
}

// add returns the operation that adds a member, which has agreed.
func (f *fixture) add(name, role string) Op {
	f.t.Helper()
	m := f.member(name, role)
	st, err := SignJoin(f.Group(), f.Head().ID, m.Node, role, f.key(name), f.now)
	if err != nil {
		f.t.Fatal(err)
	}
	return Op{Kind: Add, Member: m, Statement: st}
}

// role returns the operation that changes a role.
func (f *fixture) role(name, role string) Op {
	return Op{Kind: Role, Member: Member{DID: f.id(name), Role: role}}
}

// leave returns the operation for a member that leaves.
func (f *fixture) leave(name string) Op {
	f.t.Helper()
	st, err := SignLeave(f.Group(), f.Head().ID, f.key(name), f.now)
	if err != nil {
		f.t.Fatal(err)
	}
	return Op{Kind: Remove, Member: Member{DID: f.id(name)}, Statement: st}
}

// admin adds an admin.
func (f *fixture) admin(by, name string) string {
	f.t.Helper()
	f.do(by, f.add(name, Plain))
	return f.do(by, f.role(name, Admin))
}

func (f *fixture) about(k Kind, name string) Op { return Op{Kind: k, Member: Member{DID: f.id(name)}} }

// sign returns an entry of by after the head, without adding it.
func (f *fixture) sign(by string, o Op) []byte {
	f.t.Helper()
	f.now = f.now.Add(time.Second)
	raw, err := f.Sign(o, f.key(by), f.now)
	if err != nil {
		f.t.Fatal(err)
	}
	return raw
}

// do adds an entry of by after the head.
func (f *fixture) do(by string, o Op) string {
	f.t.Helper()
	changed, err := f.Add(f.sign(by, o), f.now)
	if err != nil || !changed {
		f.t.Fatalf("changed %t, %v", changed, err)
	}
	return f.Head().ID
}

// at returns a copy whose head is an entry of the chosen branch.
func (f *fixture) at(id string) *fixture {
	f.t.Helper()
	c, err := Read(bytes.Join(raws(f.UpTo(f.nodes[id].Number, nil)), []byte("\n")), f.now)
	if err != nil {
		f.t.Fatal(err)
	}
	return &fixture{c, f.t, f.now, f.keys}
}

func raws(all []*Entry) (out [][]byte) {
	for _, e := range all {
		out = append(out, e.Raw)
	}
	return out
}

func (f *fixture) names() string {
	var all []string
	for _, m := range f.State().Members {
		for name, k := range f.keys {
			if k.DID() == m.DID {
				all = append(all, name+"/"+m.Role)
			}
		}
	}
	return strings.Join(all, " ")
}

func TestChain(t *testing.T) {
	t.Parallel()
	f := begun(t, Op{Labels: map[string]string{"tenant": "acme", "channel": "web"}, Join: []Rule{{Issuer: "did:web:issuer.example", Role: "adjuster", As: "adjuster"}}})
	f.do("ada", f.add("ben", Plain))
	f.admin("ada", "cyd")
	f.do("cyd", f.role("ben", "adjuster"))
	moved := Op{Kind: Add, Member: Member{DID: f.id("ben"), Node: f.id("elsewhere"), Role: "adjuster"}}
	moved.Statement, _ = SignJoin(f.Group(), f.Head().ID, f.id("elsewhere"), "adjuster", f.key("ben"), f.now)
	f.do("cyd", moved)
	f.do("cyd", f.add("dan", Plain))
	f.now = f.now.Add(time.Second)
	f.do("ada", f.leave("dan"))
	f.do("cyd", f.about(Remove, "ada"))
	if got := f.names(); got != "ben/adjuster cyd/admin" {
		t.Errorf("members: %s", got)
	}
	s := f.State()
	if len(s.At(f.id("elsewhere"))) != 1 || len(s.At(f.id("ben"))) != 0 {
		t.Error("ben has not moved")
	}
	if len(s.Former) != 2 || s.Former[0].Removed || !s.Former[1].Removed || s.Former[1].Until != 9 {
		t.Errorf("former: %+v", s.Former)
	}
	for name, want := range map[string]int{"cyd": 9, "dan": 8, "ada": 9, "nobody": 0} {
		if got := f.Until(f.id(name)); got != want {
			t.Errorf("until of %s: %d, want %d", name, got, want)
		}
	}
	f.do("cyd", Op{Kind: Dissolve})
	if !f.State().Dissolved {
		t.Error("not dissolved")
	}
	again, err := Read(f.Bytes(), f.now)
	if err != nil || again.Head().ID != f.Head().ID || again.Group() != f.Group() || !again.State().Dissolved {
		t.Errorf("read again: %v", err)
	}
	if s := again.State(); s.Name != "claims" || s.Labels["channel"] != "web" || len(s.Join) != 1 || s.Join[0].As != "adjuster" {
		t.Errorf("%+v", s)
	}
	if !did.IsHash(f.Group()) || f.Len() != 10 {
		t.Errorf("id %s, %d entries", f.Group(), f.Len())
	}
}

// TestRights: what entries no member accepts, whatever their signatures.
func TestRights(t *testing.T) {
	t.Parallel()
	f := begun(t, Op{})
	f.do("ada", f.add("ben", Plain))
	f.admin("ada", "gone")
	f.do("ada", f.about(Remove, "gone"))
	f.now = f.now.Add(time.Second)
	unasked := f.add("cyd", Plain)
	unasked.Statement = nil
	asAdmin := f.add("cyd", Plain)
	asAdmin.Member.Role = Admin
	for name, one := range map[string]struct {
		by string
		op Op
	}{
		"an add by a member that is no admin": {"ben", f.add("cyd", Plain)},
		"an add by nobody":                    {"eve", f.add("eve", Plain)},
		"an admin that was removed":           {"gone", f.add("eve", Plain)},
		"a removal by nobody":                 {"eve", f.about(Remove, "ben")},
		"a member that leaves by itself":      {"ben", f.leave("ben")},
		"a member twice":                      {"ada", f.add("ben", Plain)},
		"a member that is none":               {"ada", f.about(Remove, "eve")},
		"a member that has not agreed":        {"ada", unasked},
		"a member that joins as an admin":     {"ada", asAdmin},
		"the role that it has":                {"ada", f.role("ben", Plain)},
		"the last admin leaves":               {"ada", f.leave("ada")},
		"the last admin is removed":           {"ada", f.about(Remove, "ada")},
		"the last admin is no admin any more": {"ada", f.role("ada", Plain)},
		"an approval of nothing":              {"ada", Op{Kind: Approve, Entry: f.Head().ID}},
		"an invalid role":                     {"ada", f.role("ben", "a role")},
	} {
		if _, err := f.Sign(one.op, f.key(one.by), f.now.Add(time.Second)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// edited returns an entry with changes of its JSON, signed again by a key or not.
func (f *fixture) edited(raw []byte, edit func(doc map[string]any)) []byte {
	f.t.Helper()
	doc := map[string]any{}
	if err := json.Unmarshal(raw, &doc); err != nil {
		f.t.Fatal(err)
	}
	edit(doc)
	out, err := json.Marshal(doc)
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

func TestEntriesReject(t *testing.T) {
	t.Parallel()
	f := begun(t, Op{})
	f.do("ada", f.add("ben", Plain))
	raw := f.sign("ada", f.add("cyd", Plain))
	other := begun(t, Op{Name: "other"})
	for name, one := range map[string]struct {
		raw  []byte
		want error
	}{
		"another member":      {f.edited(raw, func(d map[string]any) { d["op"].(map[string]any)["member"] = f.id("eve") }), ErrInvalid},
		"a new member":        {f.edited(raw, func(d map[string]any) { d["op"].(map[string]any)["extra"] = 1 }), ErrInvalid},
		"no proof":            {f.edited(raw, func(d map[string]any) { delete(d, "proof") }), ErrInvalid},
		"no proofs":           {f.edited(raw, func(d map[string]any) { d["proof"] = []any{} }), ErrInvalid},
		"an array of proofs":  {f.edited(raw, func(d map[string]any) { d["proof"] = []any{d["proof"]} }), ErrInvalid},
		"a proof with expiry": {f.edited(raw, func(d map[string]any) { d["proof"].(map[string]any)["expires"] = "2026-12-20T12:00:00Z" }), ErrInvalid},
		"another group":       {other.sign("ada", other.add("cyd", Plain)), ErrUnlinked},
		"a first entry":       {other.first.Raw, ErrInvalid},
		"a name twice":        {[]byte(`{"versionId":"2-x","versionId":"2-x"}`), ErrInvalid},
		"20 kB":               {bytes.Repeat([]byte("x"), 20<<10), ErrInvalid},
	} {
		if _, err := f.Add(one.raw, f.now); !errors.Is(err, one.want) {
			t.Errorf("%s: %v, want %v", name, err, one.want)
		}
	}
	if _, err := f.Add(raw, noon.Add(-time.Hour)); !errors.Is(err, ErrTime) {
		t.Errorf("an entry from the future: %v", err)
	}
	if f.Len() != 2 {
		t.Errorf("%d entries", f.Len())
	}
}

// TestGap: an entry whose predecessor is missing waits for it, and is no error of its sender.
func TestGap(t *testing.T) {
	t.Parallel()
	f := begun(t, Op{})
	start := f.at(f.Head().ID)
	f.do("ada", f.add("ben", Plain))
	f.do("ada", f.add("cyd", Plain))
	if _, err := start.Add(f.Head().Raw, f.now); !errors.Is(err, ErrUnlinked) {
		t.Errorf("a gap: %v", err)
	}
	lines := bytes.SplitAfter(f.Bytes(), []byte("\n"))
	if _, err := Read(bytes.Join([][]byte{lines[0], lines[2]}, nil), f.now); !errors.Is(err, ErrUnlinked) {
		t.Errorf("a log with a gap: %v", err)
	}
}

// TestStatements: a statement that was used, or signed before the member left, does not bring it back; those of others count for nobody.
func TestStatements(t *testing.T) {
	t.Parallel()
	f := begun(t, Op{})
	early := f.add("ben", Plain)
	for name, edit := range map[string]func(o *Op){
		"of another":       func(o *Op) { o.Statement = f.add("eve", Plain).Statement },
		"for another node": func(o *Op) { o.Member.Node = f.id("eve") },
		"for another role": func(o *Op) { o.Member.Role = "boss" },
		"for another group": func(o *Op) {
			o.Statement = (&fixture{begun(t, Op{Name: "x"}).Chain, t, f.now, f.keys}).add("ben", Plain).Statement
		},
		"that the member leaves": func(o *Op) { o.Statement = f.leave("ben").Statement },
	} {
		o := early
		if edit(&o); true {
			if _, err := f.Sign(o, f.key("ada"), f.now.Add(time.Second)); !errors.Is(err, ErrInvalid) {
				t.Errorf("a statement %s: %v", name, err)
			}
		}
	}
	left := f.leave("ben")
	f.do("ada", early)
	second := f.add("ben", Plain) // sent to a second admin, and not used
	if _, err := f.Sign(left, f.key("ada"), f.now.Add(time.Second)); !errors.Is(err, ErrInvalid) {
		t.Errorf("a statement that it leaves, from before it joined: %v", err)
	}
	f.do("ada", f.leave("ben"))
	for name, o := range map[string]Op{"used": early, "unused": second} {
		if _, err := f.Sign(o, f.key("ada"), f.now.Add(time.Second)); !errors.Is(err, ErrInvalid) {
			t.Errorf("an old statement, %s: %v", name, err)
		}
	}
	again := f.add("ben", Plain)
	if _, err := f.Sign(again, f.key("ada"), f.now.Add(MaxAge+time.Minute)); !errors.Is(err, ErrInvalid) {
		t.Errorf("a statement of yesterday: %v", err)
	}
	f.do("ada", again)
	if _, err := ReadStatement(f.edited(again.Statement.Raw, func(d map[string]any) { d["node"] = f.id("eve") })); !errors.Is(err, ErrInvalid) {
		t.Errorf("an altered statement: %v", err)
	}
}

func mustJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// TestThreshold: a change of the admins waits until enough of them have approved it; a removed admin does not count.
func TestThreshold(t *testing.T) {
	t.Parallel()
	f := begun(t, Op{Threshold: 2})
	f.admin("ada", "ben") // the only admin: its signature is enough
	f.do("ada", f.add("cyd", Plain))
	wanted := f.do("ada", f.role("cyd", Admin))
	if got := f.names(); got != "ada/admin ben/admin cyd/member" || len(f.State().Pending) != 1 {
		t.Fatalf("members: %s", got)
	}
	for by, o := range map[string]Op{"ada": {Kind: Approve, Entry: wanted}, "cyd": {Kind: Approve, Entry: wanted}} {
		if _, err := f.Sign(o, f.key(by), f.now.Add(time.Second)); !errors.Is(err, ErrInvalid) {
			t.Errorf("an approval of %s: %v", by, err)
		}
	}
	f.do("ben", Op{Kind: Approve, Entry: wanted})
	if got := f.names(); got != "ada/admin ben/admin cyd/admin" || len(f.State().Pending) != 0 {
		t.Fatalf("members: %s", got)
	}
	f.do("cyd", f.add("eve", Plain))
	wanted = f.do("ben", f.role("eve", Admin)) // ben is removed before it is approved
	f.do("ada", Op{Kind: Approve, Entry: f.do("cyd", f.about(Remove, "ben"))})
	if got := f.names(); got != "ada/admin cyd/admin eve/member" {
		t.Errorf("members: %s", got)
	}
	f.do("ada", Op{Kind: Approve, Entry: wanted})
	if got := f.names(); got != "ada/admin cyd/admin eve/member" {
		t.Errorf("with the approval of a removed admin: %s", got)
	}
	f.do("cyd", Op{Kind: Approve, Entry: wanted})
	if got := f.names(); got != "ada/admin cyd/admin eve/admin" {
		t.Errorf("members: %s", got)
	}
	f.do("ada", Op{Kind: Approve, Entry: f.do("cyd", Op{Kind: Dissolve})})
	if !f.State().Dissolved {
		t.Error("not dissolved")
	}
}

// merge adds the entries of others, in whatever order they can be added.
func (f *fixture) merge(others ...*fixture) {
	f.t.Helper()
	for _, o := range others {
		for _, e := range o.Missing(f.Locator()) {
			if _, err := f.Add(e.Raw, o.now); err != nil {
				f.t.Fatal(err)
			}
		}
	}
}

// TestRemovedAdminForks: an admin who was removed, and may be the founder, signs entries that follow one before its removal. They do not count,
// whichever it tries.
func TestRemovedAdminForks(t *testing.T) {
	t.Parallel()
	for _, founder := range []bool{false, true} {
		f := begun(t, Op{})
		mal, ada := "mal", "ada"
		if founder {
			mal, ada = "ada", "mal"
		}
		f.admin("ada", "mal")
		f.do("ada", f.add("cyd", Plain))
		before := f.do(mal, f.add("ben", Plain))
		f.do(ada, f.about(Remove, mal))
		f.do(ada, f.role("cyd", Admin))
		head := f.Head().ID
		f.Pin(head)
		forks := 0
		for name, do := range map[string]func(g *fixture){
			"it removes the others first": func(g *fixture) { g.do(mal, g.about(Remove, ada)) },
			"it adds admins of its own": func(g *fixture) {
				for i := range 10 {
					name := fmt.Sprint("sybil", i)
					g.admin(mal, name)
					g.do(name, g.about(Remove, []string{"cyd", "ben", ada}[min(i, 2)]))
					if i >= 2 {
						break
					}
				}
			},
			"it dissolves the group": func(g *fixture) { g.do(mal, Op{Kind: Dissolve}) },
			"it tries many hashes": func(g *fixture) {
				for i := range 30 {
					h := g.at(before)
					h.now = h.now.Add(time.Duration(i) * time.Millisecond)
					h.do(mal, h.about(Remove, ada))
					f.merge(h)
				}
			},
			"another admin of before adds a member on its branch": func(g *fixture) {
				g.do(mal, g.about(Remove, ada))
				g.do(mal, g.role("cyd", Admin))
				g.do("cyd", g.add("sybil", Plain))
			},
		} {
			g := f.at(before)
			do(g)
			f.merge(g)
			forks++
			if f.Head().ID != head {
				t.Fatalf("%s: it counts; members: %s", name, f.names())
			}
		}
		g := f.at(f.first.ID) // as a node that was away: it begins at the first entry of all
		if founder {
			g.do("ada", Op{Kind: Dissolve})
			f.merge(g)
		}
		if f.Head().ID != head {
			t.Fatalf("from the first entry: it counts; members: %s", f.names())
		}
		if all := f.Splits(); len(all) < 1 {
			t.Errorf("forks: %+v", all)
		}
	}
}

// TestLongSplit: a group whose admins could not reach each other for days has one head again, everywhere, although each side has pinned its own.
func TestLongSplit(t *testing.T) {
	t.Parallel()
	f := begun(t, Op{})
	f.admin("ada", "ben")
	f.admin("ada", "cyd")
	g := f.at(f.Head().ID)
	for i := range 3 {
		f.do("ada", f.add(fmt.Sprint("f", i), Plain))
		g.do("ben", g.add(fmt.Sprint("g", i), Plain))
	}
	g.do("cyd", g.about(Remove, "g0"))
	f.Pin(f.Head().ID)
	g.Pin(g.Head().ID)
	f.merge(g)
	g.merge(f)
	if f.Head().ID != g.Head().ID || f.Head().Signer != f.id("cyd") {
		t.Errorf("%s by %s, %s by %s", f.Head().ID, f.Head().Signer.Short(), g.Head().ID, g.Head().Signer.Short())
	}
}

// TestLostRemoval: a removal on a branch that does not count is not forgotten.
func TestLostRemoval(t *testing.T) {
	t.Parallel()
	f := begun(t, Op{})
	f.admin("ada", "ben")
	f.admin("ada", "cyd")
	f.do("ada", f.add("mal", Plain))
	g := f.at(f.Head().ID)
	g.do("ben", g.about(Remove, "mal"))
	f.do("ada", f.role("mal", "x"))
	f.do("cyd", f.role("mal", "y"))
	f.merge(g)
	lost := f.Lost()
	if len(lost) != 1 || lost[0].Op.Member.DID != f.id("mal") || lost[0].Signer != f.id("ben") {
		t.Fatalf("lost: %+v", lost)
	}
	f.do("ben", f.about(Remove, "mal"))
	if lost := f.Lost(); len(lost) != 0 {
		t.Errorf("lost: %+v", lost)
	}
	f.now = f.now.Add(time.Second)
	f.do("ada", f.add("mal", Plain))
	if lost := f.Lost(); len(lost) != 0 {
		t.Errorf("after it was added again: %+v", lost)
	}
}

// TestTwoDissolutions: both are of the same group, which is dissolved, and one of them counts everywhere.
func TestTwoDissolutions(t *testing.T) {
	t.Parallel()
	f := begun(t, Op{})
	f.admin("ada", "ben")
	g := f.at(f.Head().ID)
	f.do("ada", Op{Kind: Dissolve})
	g.do("ben", Op{Kind: Dissolve})
	f.merge(g)
	g.merge(f)
	if f.Head().ID != g.Head().ID || !f.State().Dissolved || f.Head().Signer != f.id("ada") {
		t.Errorf("%s, %s", f.Head().ID, g.Head().ID)
	}
	if _, err := f.Sign(f.add("cyd", Plain), f.key("ada"), f.now.Add(time.Second)); !errors.Is(err, ErrDissolved) {
		t.Errorf("after the dissolution: %v", err)
	}
}

// TestEquivocation: one admin signs two entries after one. Both stay, as evidence.
func TestEquivocation(t *testing.T) {
	t.Parallel()
	f := begun(t, Op{})
	g := f.at(f.Head().ID)
	f.do("ada", f.add("ben", Plain))
	g.do("ada", g.add("cyd", Plain))
	f.merge(g)
	forks := f.Splits()
	if len(forks) != 1 || forks[0].Signer != f.id("ada") || len(forks[0].IDs) != 2 {
		t.Errorf("%+v", forks)
	}
}

// TestChainsConverge: admins sign on what each of them has; those who have the same entries choose the same branch, whatever the order.
func TestChainsConverge(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 20 {
		origin := begun(t, Op{Threshold: 1 + r.IntN(2)})
		origin.admin("ada", "ben")
		for _, name := range []string{"cyd", "dan"} {
			id := origin.admin("ada", name)
			for len(origin.State().Pending) > 0 {
				origin.do("ben", Op{Kind: Approve, Entry: id})
			}
		}
		admins := []string{"ada", "ben", "cyd", "dan"}
		var views []*fixture
		for range admins {
			v := origin.at(origin.Head().ID)
			v.keys = origin.keys
			views = append(views, v)
		}
		entries := map[string]*Entry{}
		for n := range 60 {
			v := views[r.IntN(len(views))]
			v.now = v.now.Add(time.Duration(1+r.IntN(2000)) * time.Millisecond)
			name := fmt.Sprint("m", r.IntN(12))
			op := []Op{v.add(name, Plain), v.about(Remove, name), v.about(Remove, admins[r.IntN(4)]), v.role(name, "x")}[r.IntN(4)]
			if p := v.State().Pending; len(p) > 0 && r.IntN(2) == 0 {
				op = Op{Kind: Approve, Entry: p[r.IntN(len(p))].Entry}
			}
			raw, err := v.Sign(op, v.key(admins[r.IntN(4)]), v.now)
			if err != nil {
				continue
			}
			if _, err := v.Add(raw, v.now); err != nil {
				t.Fatal(n, err)
			}
			if r.IntN(3) == 0 {
				v.merge(views[r.IntN(len(views))])
			}
		}
		for _, v := range views {
			for _, n := range v.nodes {
				entries[n.ID] = n.Entry
			}
		}
		var heads []string
		for range 10 {
			c := origin.at(origin.first.ID)
			all := make([]*Entry, 0, len(entries))
			for _, e := range entries {
				all = append(all, e)
			}
			r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			for len(all) > 0 {
				all = slices.DeleteFunc(all, func(e *Entry) bool {
					_, err := c.Add(e.Raw, noon.Add(time.Hour))
					if err != nil && !errors.Is(err, ErrUnlinked) && c.Len() != len(entries) && e.Number > 1 {
						t.Fatal(err)
					}
					return !errors.Is(err, ErrUnlinked)
				})
			}
			heads = append(heads, c.Head().ID)
			if c.Len() != len(entries) {
				t.Fatalf("%d entries of %d", c.Len(), len(entries))
			}
			whole := c.at(c.Head().ID)
			if mustJSON(whole.State()) != mustJSON(c.State()) {
				t.Fatal("the state depends on the order")
			}
		}
		if len(slices.Compact(heads)) != 1 {
			t.Fatalf("heads: %s", heads)
		}
	}
}

// TestLargeGroup: 10,000 members are refused, the limit is named, and the group can still be made smaller.
func TestLargeGroup(t *testing.T) {
	t.Parallel()
	f := begun(t, Op{})
	var refused error
	added := 1
	for i := range 10_000 {
		f.now = f.now.Add(time.Millisecond)
		raw, err := f.Sign(f.add(fmt.Sprint("n", i), Plain), f.key("ada"), f.now)
		if err != nil {
			refused = err
			break
		}
		if _, err := f.Add(raw, f.now); err != nil {
			t.Fatal(i, err)
		}
		added++
	}
	if !errors.Is(refused, ErrFull) || added != MaxMembers {
		t.Fatalf("%d members, %v", added, refused)
	}
	f.do("ada", f.about(Remove, "n7"))
	f.do("ada", f.add("another one", Plain))
}

func FuzzEntry(f *testing.F) {
	c := begun(f, Op{Labels: map[string]string{"tenant": "acme"}, Join: []Rule{{Issuer: "did:web:a.example", As: Plain}}})
	f.Add(c.first.Raw)
	f.Add(c.sign("ada", c.add("ben", Plain)))
	f.Add(c.add("ben", Plain).Statement.Raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		if e, err := read(raw); err == nil && (e.ID == "" || e.Number < 1 || e.Signer == "") {
			t.Errorf("%+v", e)
		}
		_, _ = ReadStatement(raw)
		if c, err := Read(raw, noon); err == nil && c.Head() == nil {
			t.Error("a chain without a head")
		}
	})
}

func BenchmarkAdd(b *testing.B) {
	f := begun(b, Op{})
	for i := range 100 {
		f.do("ada", f.add(fmt.Sprint("n", i), Plain))
	}
	log := f.Bytes()
	for b.Loop() {
		if _, err := Read(log, f.now); err != nil {
			b.Fatal(err)
		}
	}
}
