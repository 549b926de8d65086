package publication

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/td"
)

// AccessRules are the access rules of the node (policy.Policy).
type AccessRules interface {
	// Audience returns the smallest audience that has all callers, or the error for the first one that cannot be a caller.
	Audience(callers []string) (td.Visibility, error)
	// AddSource adds a source of rules. Refresh puts its current rules in force.
	AddSource(add func(*access.Builder) error)
	Refresh() error
}

// maxCallers limits [Publication.For].
const maxCallers = 64

type callersKey struct{}

// WithCallers returns a context in which [Publisher.Publish] and [Publisher.Attach] let callers find and call the published Thing, in
// addition to those of the access rules. A TD without lmosd:visibility gets that of their audience. The names are those of access rules; they
// replace the ones of an earlier publication of the Thing. Without such a context a Thing that is published again keeps its callers and their
// audience.
func WithCallers(ctx context.Context, names []string) context.Context {
	return context.WithValue(ctx, callersKey{}, names)
}

type rolesKey struct{}

// WithRoles returns a context in which [Publisher.Host] and [Publisher.AttachGranted] publish an agent with a key of its own that has roles of this node's
// credential when it calls others through the node. Without one, it has none.
func WithRoles(ctx context.Context, roles []string) context.Context {
	return context.WithValue(ctx, rolesKey{}, roles)
}

// rolesOf returns the roles of [WithRoles].
func rolesOf(ctx context.Context) []string {
	roles, _ := ctx.Value(rolesKey{}).([]string)
	return slices.Clone(roles)
}

// callersOf returns the callers of [WithCallers].
func callersOf(ctx context.Context) (names []string, given bool) {
	names, given = ctx.Value(callersKey{}).([]string)
	return slices.Clone(names), given
}

// audienceOf validates the callers of a publication, and returns their audience.
func (p *Publisher) audienceOf(names []string) (td.Visibility, error) {
	switch {
	case len(names) == 0:
		return td.Public, nil
	case len(names) > maxCallers:
		return 0, interact.Errorf(interact.Invalid, "write an access rule for an organization or a role", "got %d callers, the limit is %d", len(names), maxCallers)
	case p.o.Access == nil:
		return 0, interact.Errorf(interact.Invalid, "publish it without callers", "this node has no access rules")
	}
	return p.o.Access.Audience(names)
}

// beyond warns of callers who do not receive the description: the TD states an audience without them.
func beyond(stated, callers td.Visibility) []td.Issue {
	if stated == td.Public || callers != td.Public && (callers == td.Private || stated != td.Private) {
		return nil
	}
	return []td.Issue{{Pointer: "/lmosd:visibility", Reason: fmt.Sprintf("it is %q: callers outside of that audience do not receive the description", stated)}}
}

// grant puts the callers of a publication in force. They end with it.
func (p *Publisher) grant(before, after *Publication) error {
	if p.o.Access == nil || before == nil && len(after.For) == 0 || before != nil && slices.Equal(before.For, after.For) {
		return nil
	}
	return p.o.Access.Refresh()
}

// addRules adds one rule for each publication with callers, which is called "expose NAME". It leaves out callers that have no meaning any
// longer, such as the name of a former partner: they must not disable the other rules.
func (x *Index) addRules(b *access.Builder) error {
	x.mu.RLock() // one snapshot: a Thing must not be in neither of them
	all, expected := slices.Collect(maps.Values(x.all)), maps.Clone(x.expected)
	x.mu.RUnlock()
	for _, p := range all {
		delete(expected, p.Thing)
	}
	all = slices.DeleteFunc(all, func(p *Publication) bool { return p.Description == nil || len(p.For) == 0 })
	slices.SortFunc(all, func(a, b *Publication) int { return strings.Compare(a.Thing, b.Thing) })
	for _, p := range all {
		if err := addCallers(b, p.Description.Name(), p.Thing, p.For); err != nil {
			return err
		}
	}
	for _, thing := range slices.Sorted(maps.Keys(expected)) {
		if err := addCallers(b, thing, thing, expected[thing]); err != nil {
			return err
		}
	}
	return nil
}

// expect adds the callers of a Thing that is about to be loaded: they are in the rules before it is in the index.
func (x *Index) expect(thing string, callers []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.expected == nil {
		x.expected = map[string][]string{}
	}
	x.expected[thing] = callers
}

// expectNone ends what expect has added, and reports whether that was something.
func (x *Index) expectNone() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	some := len(x.expected) > 0
	x.expected = nil
	return some
}

// addCallers adds the rule "expose NAME" for the callers of a Thing.
func addCallers(b *access.Builder, name, thing string, callers []string) error {
	callers = slices.DeleteFunc(slices.Clone(callers), func(name string) bool { return b.CheckCaller(name) != nil })
	if len(callers) == 0 {
		return nil
	}
	return b.AddRule("expose "+name, access.Rule{Allow: callers, To: []string{string(access.Find), string(access.Call)}, On: []string{thing}})
}

// Offered returns the publications in force, sorted by id. The caller must not change them.
func (p *Publisher) Offered() []*Publication {
	all := slices.DeleteFunc(p.o.Index.All(), func(p *Publication) bool { return p.Description == nil })
	slices.SortFunc(all, func(a, b *Publication) int { return strings.Compare(a.Thing, b.Thing) })
	return all
}
