package access

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/ast"
	"github.com/cedar-policy/cedar-go/types"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// An entityType is the type of an entity in policies, an index of typeNames.
type entityType uint8

const (
	anyType          entityType = iota
	agentType                   // a caller: did.Principal.ID
	nodeType                    // the DID of a node, of its consumers too; "self" as a resource
	roleType                    // "ORGANIZATION/role"; "local/role" of a token
	organizationType            // the SCID of a did:webvh, otherwise the DID
	tokenType                   // the name of an access token of this node, or of a subject of an identity provider
	groupType                   // the id of a group; "ID/role" of a role in it
	scopeType                   // a scope of a subject of an identity provider
	relationType                // "own", "partner", "untrusted", "local"
	actionType                  // an operation
	thingType                   // the id of a Thing of this node
	nameType                    // a name of a Thing
	capabilityType              // a capability of a Thing, and those above it
	audienceType                // the visibility of a Thing
	otherType                   // no caller and no resource has it
)

var typeNames = []string{"", "Agent", "Node", "Role", "Org", "Token", "Group", "Scope", "Relation", "Action", "Thing", "Name", "Cap", "Audience", ""}

const (
	self       = "self"  // the node as a resource
	localRoles = "local" // in place of an organization, for the roles of tokens
)

type effect bool

const (
	permit effect = true
	forbid effect = false
)

// An entity is a caller or a resource. The zero value is any. Of a role, id is the organization or the group, and role its name.
type entity struct {
	typ      entityType
	id, role string
}

// uid returns the entity as policies name it.
func (e entity) uid() types.EntityUID {
	if e.role != "" {
		return types.NewEntityUID(types.EntityType(typeNames[e.typ]), types.String(e.id+"/"+e.role))
	}
	return types.NewEntityUID(types.EntityType(typeNames[e.typ]), types.String(e.id))
}

// entityOf returns the entity that a policy names.
func entityOf(name, id string) entity {
	typ := otherType
	if i := slices.Index(typeNames, name); i > 0 {
		typ = entityType(i)
	}
	if organization, role, ok := strings.Cut(id, "/"); ok && (typ == roleType || typ == groupType) {
		return entity{typ, organization, role}
	}
	return entity{typ: typ, id: id}
}

// A typeSet is a set of types of entities.
type typeSet uint16

func (s typeSet) has(t entityType) bool { return s&(1<<t) != 0 }
func (s *typeSet) add(t entityType)     { *s |= 1 << t }

// organizationID returns the id of an organization, which stays when its domain changes: the SCID of a did:webvh, otherwise the DID.
func organizationID(id did.DID) string {
	if rest, ok := strings.CutPrefix(string(id), "did:webvh:"); ok {
		scid, _, _ := strings.Cut(rest, ":")
		return scid
	}
	return string(id)
}

// A Builder collects rules for a [Set]. It is not safe for concurrent use.
type Builder struct {
	o        Options
	policies []*policy
	entries  []Entry
}

// NewBuilder returns a builder without rules.
func NewBuilder(o Options) *Builder { return &Builder{o: o} }

// A policy is a compiled policy.
type policy struct {
	id        string            // of its rule
	sum       [sha256.Size]byte // of id and the JSON form
	effect    effect
	principal entity // the scope; the zero value is any
	resource  entity
	compiled  *cedar.Policy
	rest      *cedar.Policy // compiled without the parts of its scope that the index decides
	context   []string      // the attributes of the context that its conditions read
	condition bool          // it has a condition
	to        []Op          // the operations in its scope; nil: all
	// Policies without conditions need no evaluation: the index finds those with the caller and the resource, actions has the operations.
	// Nil: the policy must be evaluated.
	actions    []Op
	pattern    types.Pattern // of affordances; only with hasPattern
	hasPattern bool
}

// add adds the policy of one caller and one resource of a rule.
func (b *Builder) add(id string, e effect, caller entity, operations []Op, on, when string) error {
	p := ast.Permit()
	if e == forbid {
		p = ast.Forbid()
	}
	if caller != (entity{}) {
		p = p.PrincipalIn(caller.uid())
	}
	actions := make([]types.EntityUID, len(operations))
	for i, o := range operations {
		actions[i] = entity{typ: actionType, id: string(o)}.uid()
	}
	p = p.ActionInSet(actions...)
	resource, affordance := resourceOf(on)
	if resource != (entity{}) {
		p = p.ResourceIn(resource.uid())
	}
	if affordance != "" {
		p = p.When(ast.Context().Access("affordance").Like(pattern(affordance)))
	}
	if when != "" {
		condition, err := parseCondition(when)
		if err != nil {
			return err
		}
		merged, err := withCondition(p, condition)
		if err != nil {
			return err
		}
		return b.addPolicy(id, merged)
	}
	if err := b.addPolicy(id, cedar.NewPolicyFromAST(p)); err != nil {
		return err
	}
	last := b.policies[len(b.policies)-1]
	last.actions = operations
	if affordance != "" {
		last.hasPattern, last.pattern = true, pattern(affordance)
	}
	return nil
}

// resourceOf returns the resource of a rule, and the pattern of its affordances.
func resourceOf(on string) (entity, string) {
	switch {
	case on == "*":
		return entity{}, ""
	case on == "node":
		return entity{typ: nodeType, id: self}, ""
	case strings.HasPrefix(on, "cap:"):
		id := on[len("cap:"):]
		if normal, ok := td.Normal(id); ok {
			id = strings.ReplaceAll(normal, "/", ":") // as td.Prefixes
		}
		return entity{typ: capabilityType, id: id}, ""
	case strings.Contains(on, ":"): // an id
		return entity{typ: thingType, id: on}, ""
	}
	name, affordance, _ := strings.Cut(on, "/")
	if affordance == "*" {
		affordance = ""
	}
	return entity{typ: nameType, id: name}, affordance
}

// pattern returns the pattern of a text in which "*" matches any text.
func pattern(s string) types.Pattern {
	var parts []any
	for i, literal := range strings.Split(s, "*") {
		if i > 0 {
			parts = append(parts, types.Wildcard{})
		}
		if literal != "" {
			parts = append(parts, types.String(literal))
		}
	}
	return types.NewPattern(parts...)
}

// parseCondition parses a condition in Cedar: exactly one policy contains it.
func parseCondition(when string) (*cedar.Policy, error) {
	all, err := cedar.NewPolicyListFromBytes("when", []byte("permit (principal, action, resource) when {\n"+when+"\n};"))
	if err != nil {
		return nil, fmt.Errorf("when: %s", strings.TrimPrefix(err.Error(), "parser error: "))
	}
	if len(all) != 1 {
		return nil, errors.New("when: expected one condition")
	}
	return all[0], nil
}

// withCondition returns the policy with the condition of another one, too. The JSON form of Cedar lists conditions.
func withCondition(p *ast.Policy, condition *cedar.Policy) (*cedar.Policy, error) {
	var whole, extra map[string]json.RawMessage
	for _, one := range []struct {
		from json.Marshaler
		into *map[string]json.RawMessage
	}{{p, &whole}, {condition, &extra}} {
		raw, err := one.from.MarshalJSON()
		if err == nil {
			err = json.Unmarshal(raw, one.into)
		}
		if err != nil {
			return nil, err
		}
	}
	var conditions, more []json.RawMessage
	_ = json.Unmarshal(whole["conditions"], &conditions) // absent without a condition
	if err := json.Unmarshal(extra["conditions"], &more); err != nil {
		return nil, err
	}
	joined, err := json.Marshal(append(conditions, more...))
	if err != nil {
		return nil, err
	}
	whole["conditions"] = joined
	raw, err := json.Marshal(whole)
	if err != nil {
		return nil, err
	}
	out := &cedar.Policy{}
	return out, out.UnmarshalJSON(raw)
}

// AddCedar adds policies in Cedar. The error is an [*Error]; the set is then unchanged.
func (b *Builder) AddCedar(file string, text []byte) error {
	if len(text) > MaxFile {
		return &Error{File: file, Msg: fmt.Sprintf("larger than %d bytes", MaxFile)}
	}
	all, err := cedar.NewPolicyListFromBytes(file, text)
	if err != nil {
		return &Error{File: file, Msg: strings.TrimPrefix(err.Error(), "parser error: ")}
	}
	added := &Builder{o: b.o}
	for _, p := range all {
		at := p.Position()
		id := fmt.Sprintf("%s:%d", file, at.Line)
		err := added.addPolicy(id, p)
		if err == nil {
			err = added.policies[len(added.policies)-1].unknownOp()
		}
		if err != nil {
			return &Error{File: file, Line: at.Line, Column: at.Column, Msg: err.Error()}
		}
		entry := Entry{ID: id, Text: strings.TrimSpace(string(p.MarshalCedar()))}
		if name := added.policies[len(added.policies)-1].principal.name(); name != "" {
			entry.Names = []string{name}
		}
		added.entries = append(added.entries, entry)
	}
	b.addAll(added)
	return nil
}

// unknownOp returns the error of a policy that names an operation that does not exist, and thus never holds.
func (p *policy) unknownOp() error {
	if i := slices.IndexFunc(p.to, func(o Op) bool { return !isOp(o) }); i >= 0 {
		return unknownOp(string(p.to[i]))
	}
	return nil
}

// A scope is the part of the JSON form of a policy that names callers or resources.
type scope struct {
	Op     string
	Entity struct{ Type, ID string }
	In     *struct {
		Entity struct{ Type, ID string }
	}
}

func (s scope) entity() entity {
	switch {
	case s.In != nil:
		return entityOf(s.In.Entity.Type, s.In.Entity.ID)
	case s.Op == "==" || s.Op == "in":
		return entityOf(s.Entity.Type, s.Entity.ID)
	}
	return entity{}
}

// indexed reports whether the scope matches all requests for which the index finds the policy.
func (s scope) indexed() bool {
	e := s.entity()
	return s.In == nil && (s.Op == "All" || s.Op == "in" || s.Op == "==" && (e.typ == agentType || e.typ == thingType))
}

// addPolicy reads the scope of a policy, by which the set finds it.
func (b *Builder) addPolicy(id string, p *cedar.Policy) error {
	raw, err := p.MarshalJSON()
	if err != nil {
		return err
	}
	var form struct {
		Principal, Resource scope
		Action              struct {
			Entity   struct{ Type, ID string }
			Entities []struct{ Type, ID string }
		}
		Conditions json.RawMessage
	}
	if err := json.Unmarshal(raw, &form); err != nil {
		return err
	}
	var to []Op
	indexed := scopes{"principal": form.Principal.indexed(), "resource": form.Resource.indexed(), "action": true}
	for _, e := range append(form.Action.Entities, form.Action.Entity) {
		if e.ID != "" {
			to = append(to, Op(e.ID))
			indexed["action"] = indexed["action"] && e.Type == typeNames[actionType]
		}
	}
	one := &policy{id: id, sum: sha256.Sum256(append([]byte(id+"\x00"), raw...)), to: to, effect: effect(p.Effect() == cedar.Permit), principal: form.Principal.entity(),
		resource: form.Resource.entity(), compiled: p, rest: p, condition: len(form.Conditions) > 0 && string(form.Conditions) != "[]"}
	if one.condition {
		one.context = attributesIn(string(form.Conditions))
		if one.rest, err = without(indexed, raw); err != nil {
			return err
		}
	}
	b.policies = append(b.policies, one)
	return nil
}

// scopes are the parts of a scope, by their names in the JSON form of a policy.
type scopes map[string]bool

// without returns the policy with the JSON form raw, without the parts of its scope that the index decides.
func without(indexed scopes, raw []byte) (*cedar.Policy, error) {
	var form map[string]json.RawMessage
	if err := json.Unmarshal(raw, &form); err != nil {
		return nil, err
	}
	for part, decided := range indexed {
		if decided {
			form[part] = json.RawMessage(`{"op":"All"}`)
		}
	}
	raw, err := json.Marshal(form)
	if err != nil {
		return nil, err
	}
	out := &cedar.Policy{}
	return out, out.UnmarshalJSON(raw)
}

// The attributes of the context of conditions.
const (
	affordanceAttribute = "affordance"
	viaAttribute        = "via"
	hopsAttribute       = "hops"
	timeAttribute       = "time"
	inputAttribute      = "input"
)

var attributes = []string{affordanceAttribute, viaAttribute, hopsAttribute, timeAttribute, inputAttribute}

// attributesIn returns the attributes of the context that conditions in JSON read. Those that do more with the context than read attributes
// get all, but the input only if they have its name.
func attributesIn(conditions string) []string {
	whole := strings.Count(conditions, `{"Var":"context"}`) > strings.Count(conditions, `"left":{"Var":"context"},"attr":`)
	return slices.DeleteFunc(slices.Clone(attributes), func(name string) bool {
		return !(whole && name != inputAttribute) && !strings.Contains(conditions, strconv.Quote(name))
	})
}

// A Set is a compiled set of rules. It is immutable and safe for concurrent use.
type Set struct {
	sum       [sha256.Size]byte // of the policies
	untrusted string
	staleRead bool         // Options.Stale is StaleRead
	relay     bool         // Options.Relay
	connect   did.Relation // the least that may connect
	entries   []Entry
	finds     map[entity]finds // by principal
	// findsByTarget is true if decisions on find depend on more than the visibility of a Thing.
	findsByTarget bool
	// by has the policies by principal of their scopes; principals are the types of those.
	by         map[entity]*policies
	principals typeSet
}

// policies are the policies with one principal, by resource of their scopes; resources are the types of those.
type policies struct {
	by        map[entity][]*policy
	resources typeSet
}

// index adds a policy to by.
func (s *Set) index(p *policy) {
	of := s.by[p.principal]
	if of == nil {
		of = &policies{by: map[entity][]*policy{}}
		s.by[p.principal] = of
	}
	of.by[p.resource] = append(of.by[p.resource], p)
	of.resources.add(p.resource.typ)
	s.principals.add(p.principal.typ)
}

// Build returns the set of the rules.
func (b *Builder) Build() *Set {
	s := &Set{untrusted: b.o.Untrusted, relay: b.o.Relay, staleRead: b.o.Stale == StaleRead, entries: b.entries, by: map[entity]*policies{}, finds: map[entity]finds{}}
	switch b.o.Connect {
	case ConnectPartners:
		s.connect = did.Partner
	case ConnectMembers:
		s.connect = did.Own
	}
	for _, p := range b.policies {
		if p.to == nil || slices.Contains(p.to, Find) {
			s.findsByTarget = s.findsByTarget || p.actions == nil || p.resource != (entity{}) // a condition may name a Thing
			f := s.finds[p.principal]
			f.add(p)
			s.finds[p.principal] = f
		}
		s.index(p)
		s.sum = sha256.Sum256(append(s.sum[:], p.sum[:]...))
	}
	s.sum = sha256.Sum256(fmt.Appendf(s.sum[:], "%v %v %v %v", s.untrusted, s.relay, s.staleRead, s.connect))
	return s
}

// callers appends the entities that scopes of principals may name for p, except that of its id, which is made of two parts, unless some scope
// does.
func (s *Set) callers(all []entity, p *did.Principal) []entity {
	all = append(all, entity{}, entity{typ: relationType, id: p.Relation.String()})
	if s.principals.has(agentType) {
		all = append(all, entity{typ: agentType, id: p.ID()})
	}
	if p.Node != "" {
		all = append(all, entity{typ: nodeType, id: string(p.Node)})
	}
	if agent := p.Agent(); agent != "" { // rules name it by its DID, as they name nodes
		all = append(all, entity{typ: nodeType, id: string(agent)})
	}
	if (p.Proof() == did.Token || p.Proof() == did.OIDC) && p.Name != "" {
		all = append(all, entity{typ: tokenType, id: p.Name})
	}
	for _, m := range p.Groups {
		all = append(all, entity{typ: groupType, id: m.Group}, entity{groupType, m.Group, m.Role})
	}
	for _, scope := range p.Scopes {
		all = append(all, entity{typ: scopeType, id: scope})
	}
	if p.Org != "" {
		id := organizationID(p.Org)
		all = append(all, entity{typ: organizationType, id: id})
		for _, role := range p.Roles {
			all = append(all, entity{roleType, id, role})
		}
	} else if p.Scoped() {
		for _, role := range p.Roles {
			all = append(all, entity{roleType, localRoles, role})
		}
	}
	for _, a := range p.Attested {
		issuer := entity{typ: organizationType, id: organizationID(a.Issuer)}
		if !slices.Contains(all, issuer) {
			all = append(all, issuer)
		}
		all = append(all, entity{roleType, issuer.id, a.Role})
	}
	return all
}

// targets appends the entities that scopes of resources may name for t.
func targets(all []entity, t *Target) []entity {
	all = append(all, entity{})
	if t == nil {
		return append(all, entity{typ: nodeType, id: self})
	}
	all = append(all, entity{typ: thingType, id: t.ID}, entity{typ: audienceType, id: t.Visibility.String()})
	for _, n := range t.Names {
		all = append(all, entity{typ: nameType, id: n})
	}
	for _, c := range t.Capabilities {
		all = append(all, entity{typ: capabilityType, id: c})
	}
	return all
}

// candidates are the policies whose scopes may match a request, with their positions as ids.
type candidates []*policy

// All yields the policies for Cedar.
func (c candidates) All() iter.Seq2[cedar.PolicyID, *cedar.Policy] {
	return func(yield func(cedar.PolicyID, *cedar.Policy) bool) {
		for _, p := range c {
			if !yield(cedar.PolicyID(p.id), p.rest) {
				return
			}
		}
	}
}

// entities are the caller and the resource of a request. Few conditions need their ancestors, which are made for those.
type entities struct {
	set              *Set
	p                *did.Principal
	target           *Target
	caller, resource types.EntityUID
}

// Get returns an entity with all its ancestors as parents; those have no attributes and no parents.
func (e *entities) Get(uid types.EntityUID) (types.Entity, bool) {
	switch uid {
	case e.caller:
		return withParents(uid, e.set.callers(nil, e.p)), true
	case e.resource:
		return withParents(uid, targets(nil, e.target)), true
	}
	return types.Entity{}, false
}

// withParents returns an entity with its ancestors.
func withParents(uid types.EntityUID, all []entity) types.Entity {
	parents := make([]types.EntityUID, 0, len(all))
	for _, e := range all {
		if u := e.uid(); e != (entity{}) && u != uid {
			parents = append(parents, u)
		}
	}
	return types.Entity{UID: uid, Parents: types.NewEntityUIDSet(parents...)}
}

// byRules decides a request by the rules. It reports false if none of them concerns the request.
func (s *Set) byRules(p *did.Principal, r Request) (Decision, bool) {
	if len(s.by) == 0 {
		return Decision{}, false
	}
	var callersRoom, targetsRoom [16]entity
	callers := s.callers(callersRoom[:0], p)
	var resources []entity
	var conditional candidates
	d := Decision{Op: r.Op, Relation: p.Relation}
	included, scoped := r.Target == nil || includes(r.Target.Visibility, p), p.Scoped()
	for _, caller := range callers {
		if !s.principals.has(caller.typ) {
			continue
		}
		of := s.by[caller]
		if of == nil {
			continue
		}
		if resources == nil {
			resources = targets(targetsRoom[:0], r.Target)
		}
		for _, resource := range resources {
			if !of.resources.has(resource.typ) {
				continue
			}
			for _, one := range of.by[resource] {
				switch {
				case one.to != nil && !slices.Contains(one.to, r.Op):
				case one.effect == permit && (!included && isBroad(one.resource) || scoped && caller.typ == relationType):
				case one.actions == nil:
					conditional = append(conditional, one)
				case !one.matches(r):
				case one.effect == forbid:
					return Decision{Rule: one.id, Op: r.Op, Relation: p.Relation}, true
				case !d.Allow:
					d.Allow, d.Rule = true, one.id
				}
			}
		}
	}
	if len(conditional) == 0 {
		return d, d.Allow
	}
	d, decided := s.evaluate(conditional, p, r, d)
	d.Conditional = slices.ContainsFunc(conditional, func(one *policy) bool { return one.condition })
	return d, decided
}

// isBroad reports whether the resource of a policy names no Thing and no audience.
func isBroad(resource entity) bool { return resource == entity{} || resource.typ == capabilityType }

// matches reports whether a policy without conditions concerns r, whose caller and resource it names.
func (p *policy) matches(r Request) bool {
	return slices.Contains(p.actions, r.Op) && (!p.hasPattern || p.pattern.Match(types.String(r.Affordance)))
}

// evaluate evaluates the policies with conditions. d is the decision of those without.
func (s *Set) evaluate(found candidates, p *did.Principal, r Request, d Decision) (Decision, bool) {
	context, err := found.context(p, r)
	if err != nil {
		return Decision{Op: r.Op, Relation: p.Relation, Problem: "the input cannot be checked: " + err.Error()}, true
	}
	resource := entity{typ: nodeType, id: self}
	if r.Target != nil {
		resource = entity{typ: thingType, id: r.Target.ID}
	}
	all := &entities{s, p, r.Target, entity{typ: agentType, id: p.ID()}.uid(), resource.uid()}
	verdict, why := cedar.Authorize(found, all, cedar.Request{Principal: all.caller, Action: entity{typ: actionType, id: string(r.Op)}.uid(),
		Resource: all.resource, Context: context})
	for _, e := range why.Errors { // a policy that denies might have matched
		if slices.ContainsFunc(found, func(one *policy) bool { return one.id == string(e.PolicyID) && one.effect == forbid }) {
			return Decision{Rule: string(e.PolicyID), Op: r.Op, Relation: p.Relation, Problem: "a rule that denies cannot be evaluated: " + e.Message}, true
		}
	}
	if len(why.Reasons) > 0 && (verdict == cedar.Deny || !d.Allow) {
		d.Allow, d.Rule = bool(verdict), string(why.Reasons[0].PolicyID)
	}
	return d, d.Rule != ""
}

// context returns the attributes of the context of a request that conditions read.
func (c candidates) context(p *did.Principal, r Request) (types.Record, error) {
	m := types.RecordMap{}
	for _, one := range c {
		for _, name := range one.context {
			switch name {
			case affordanceAttribute:
				m[affordanceAttribute] = types.String(r.Affordance)
			case viaAttribute:
				m[viaAttribute] = types.String(p.Proof()) // a session passes no rule that its maker does not
			case hopsAttribute:
				m[hopsAttribute] = types.Long(r.Hops)
			case timeAttribute:
				m[timeAttribute] = types.NewDatetime(r.Now)
			case inputAttribute:
				if _, known := m[inputAttribute]; known || r.Input == nil {
					continue
				}
				v, err := r.Input.Value()
				if err != nil {
					return types.Record{}, err
				}
				if value := toCedar(v); value != nil {
					m[inputAttribute] = value
				}
			}
		}
	}
	return types.NewRecord(m), nil
}

// toCedar converts decoded JSON. Cedar has no null and no fractions: null members are absent, and other numbers are decimals as text.
func toCedar(v any) types.Value {
	switch v := v.(type) {
	case string:
		return types.String(v)
	case bool:
		return types.Boolean(v)
	case float64:
		if v == float64(int64(v)) {
			return types.Long(int64(v))
		}
		if d, err := types.NewDecimalFromFloat(v); err == nil {
			return d
		}
	case []any:
		all := make([]types.Value, 0, len(v))
		for _, one := range v {
			if c := toCedar(one); c != nil {
				all = append(all, c)
			}
		}
		return types.NewSet(all...)
	case map[string]any:
		m := make(types.RecordMap, len(v))
		for name, one := range v {
			if c := toCedar(one); c != nil {
				m[types.String(name)] = c
			}
		}
		return types.NewRecord(m)
	}
	return nil
}
