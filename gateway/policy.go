package gateway

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy"
	accessrules "github.com/lmosd/lmosd/policy/access"
	policyrules "github.com/lmosd/lmosd/policy/rules"
	"github.com/lmosd/lmosd/publication"
)

// maxRule limits the body of a request about access rules, in bytes, without a file of rules.
const maxRule = 64 << 10

// policy returns the access rules of the node.
func (g *Gateway) policy() (*policy.Policy, error) {
	if g.o.Policy == nil {
		return nil, interact.Errorf(interact.NoAffordance, "", "this node has no access rules").Then(interact.StepStatus)
	}
	return g.o.Policy, nil
}

func (g *Gateway) getPolicy(w http.ResponseWriter, _ *http.Request) error {
	p, err := g.policy()
	if err != nil {
		return err
	}
	shown := api.Policy{APIVersion: api.APIVersion, Kind: "Policy", Items: rules(p.Rules())}
	shown.Untrusted, shown.Connect, shown.File = p.Settings()
	if err := p.FileError(); err != nil {
		shown.Error = err.Error()
	}
	return writeJSON(w, http.StatusOK, shown)
}

// rules converts rules to their form in the API.
func rules(all []accessrules.Entry) []api.Rule {
	shown := make([]api.Rule, 0, len(all))
	for _, e := range all {
		shown = append(shown, api.Rule{ID: e.ID, Text: e.Text, RuleRequest: api.RuleRequest{Allow: e.Rule.Allow, Deny: e.Rule.Deny, To: e.Rule.To,
			On: e.Rule.On, When: e.Rule.When}})
	}
	return shown
}

func (g *Gateway) postRule(w http.ResponseWriter, r *http.Request) error {
	p, err := g.policy()
	if err != nil {
		return err
	}
	var body api.RuleRequest
	if err := readLimited(w, r, maxRule, &body, `{"allow": ["anyone"], "to": ["invoke"], "on": ["weather"]}`); err != nil {
		return err
	}
	added, err := p.AddRule(accessrules.Rule{Allow: body.Allow, Deny: body.Deny, To: body.To, On: body.On, When: body.When})
	if err != nil {
		return err
	}
	g.log.Info("access rule added", "rule", added.ID, "text", added.Text)
	change := policyChange(p)
	change.Added = rules([]accessrules.Entry{added})
	for _, on := range body.On {
		if g.unknownTarget(on) {
			change.Warnings = append(change.Warnings, "this node offers no agent "+tdd.Clip(on)+" now")
		}
	}
	return writeJSON(w, http.StatusCreated, change)
}

func policyChange(p *policy.Policy) *api.PolicyChange {
	_, _, file := p.Settings()
	return &api.PolicyChange{APIVersion: api.APIVersion, Kind: "PolicyChange", File: file}
}

// unknownTarget reports whether a rule names an agent that this node does not offer now.
func (g *Gateway) unknownTarget(on string) bool {
	if on == "*" || on == "node" || strings.HasPrefix(on, "cap:") {
		return false
	}
	name, _, _ := strings.Cut(on, "/")
	return !slices.ContainsFunc(g.o.Publisher.Offered(), func(p *publication.Publication) bool { return p.Thing == on || p.Description.Name() == name })
}

func (g *Gateway) deleteRules(w http.ResponseWriter, r *http.Request) error {
	p, err := g.policy()
	if err != nil {
		return err
	}
	q, err := tdd.Params(r, "rule")
	if err != nil {
		return err
	}
	if len(q["rule"]) == 0 {
		return interact.Errorf(interact.Usage, "rule=policy.yaml:12, or the name of a caller", "the parameter rule is missing")
	}
	removed, err := p.RemoveRules(q["rule"])
	if err != nil {
		return err
	}
	change := policyChange(p)
	change.Removed = rules(removed)
	for _, e := range removed {
		g.log.Info("access rule removed", "rule", e.ID, "text", e.Text)
	}
	return writeJSON(w, http.StatusOK, change)
}

func (g *Gateway) rights(w http.ResponseWriter, r *http.Request) error {
	p, err := g.policy()
	if err != nil {
		return err
	}
	q, err := tdd.Params(r, "who", "on")
	if err != nil {
		return err
	}
	var all []policyrules.Right
	switch who, on := q.Get("who"), q.Get("on"); {
	case (who == "") == (on == ""):
		return interact.Errorf(interact.Usage, "who=globex, or on=weather", "expected one of the parameters who and on")
	case who != "":
		all, err = g.rightsOf(p, who)
	default:
		all, err = g.rightsOn(p, on)
	}
	if err != nil {
		return err
	}
	list := api.RightList{APIVersion: api.APIVersion, Kind: "RightList", Items: make([]api.Right, 0, len(all))}
	for _, one := range all {
		list.Items = append(list.Items, right(one))
	}
	return writeJSON(w, http.StatusOK, list)
}

func right(r policyrules.Right) api.Right {
	return api.Right{Who: r.Who, Thing: r.Thing, Affordance: r.Affordance, Op: string(r.Op), Allow: r.Allow, Rule: r.Rule, Why: r.Why(),
		Conditional: r.Conditional}
}

// rightsOf returns the rights of a caller and its roles.
func (g *Gateway) rightsOf(p *policy.Policy, who string) (all []policyrules.Right, err error) {
	for _, name := range p.WithRoles(who) {
		c, err := p.Caller(name)
		if err != nil {
			return nil, err
		}
		all = append(all, p.NodeRights(c)...)
		for _, one := range g.o.Publisher.Offered() {
			all = append(all, p.ThingRights(c, one.Description.Thing, targetOf(one))...)
		}
	}
	return all, nil
}

// rightsOn returns the rights of the kinds of callers, and of the callers that rules name, on a Thing or the node.
func (g *Gateway) rightsOn(p *policy.Policy, on string) (all []policyrules.Right, err error) {
	var thing *publication.Publication
	if on != accessrules.NameOf(nil) {
		if thing, err = g.offered(on); err != nil {
			return nil, err
		}
	}
	for i, name := range slices.Concat(policyrules.Kinds, p.Named()) {
		if i >= len(policyrules.Kinds) && slices.Contains(policyrules.Kinds, name) {
			continue
		}
		c, err := p.Caller(name)
		switch {
		case err != nil: // a former name
		case thing == nil:
			all = append(all, p.NodeRights(c)...)
		default:
			all = append(all, p.ThingRights(c, thing.Description.Thing, targetOf(thing))...)
		}
	}
	return all, nil
}

func targetOf(p *publication.Publication) *accessrules.Target {
	return accessrules.TargetOf(p.Description.Thing, p.Description.Name())
}

// offered returns the publication of a Thing of this node by its reference, id or name.
func (g *Gateway) offered(ref string) (*publication.Publication, error) {
	var found []*publication.Publication
	for _, p := range g.o.Publisher.Offered() {
		if p.Thing == ref || p.Description.Ref() == ref {
			return p, nil
		}
		if p.Description.Name() == ref {
			found = append(found, p)
		}
	}
	switch len(found) {
	case 0:
		return nil, interact.NotOffered(tdd.Clip(ref))
	case 1:
		return found[0], nil
	}
	var refs []string
	for _, p := range found {
		refs = append(refs, p.Description.Ref())
	}
	return nil, &interact.Error{Code: interact.Ambiguous, Title: "several agents of this node have the name " + tdd.Clip(ref), Next: interact.UseOne(refs)}
}

// target returns the target of a request on "node", a Thing, or a Thing with an affordance after "/".
func (g *Gateway) target(on string) (t *accessrules.Target, affordance string, err error) {
	if on == accessrules.NameOf(nil) || on == "" {
		return nil, "", nil
	}
	p, err := g.offered(on)
	if i := strings.LastIndexByte(on, '/'); err != nil && i > 0 {
		if q, err := g.offered(on[:i]); err == nil {
			d := q.Description
			affordance = on[i+1:]
			if d.Actions[affordance] == nil && d.Properties[affordance] == nil && d.Events[affordance] == nil {
				return nil, "", interact.Errorf(interact.NoAffordance, "", "%s has no action, property or event %s", d.Name(), tdd.Clip(affordance)).
					Then(interact.StepShow, d.Name())
			}
			return targetOf(q), affordance, nil
		}
	}
	if err != nil {
		return nil, "", err
	}
	return targetOf(p), "", nil
}

func (g *Gateway) why(w http.ResponseWriter, r *http.Request) error {
	p, err := g.policy()
	if err != nil {
		return err
	}
	var body api.WhyRequest
	const example = `{"who": "globex", "op": "invoke", "on": "weather/getWeather"}`
	if err := readLimited(w, r, maxRule+2*accessrules.MaxFile, &body, example); err != nil {
		return err
	}
	c, err := p.Caller(body.Who)
	if err != nil {
		return err
	}
	q, err := g.request(body)
	if err != nil {
		return err
	}
	var with *policyrules.File
	if body.With != nil {
		with = &policyrules.File{Name: body.With.Name, Text: []byte(body.With.Text)}
	}
	e, err := p.Explain(c.Principal, q, with)
	if err != nil {
		return err
	}
	shown := api.Explanation{APIVersion: api.APIVersion, Kind: "Explanation", Text: e.Rule.Text, Relation: c.Principal.Relation.String(),
		Right:     right(policyrules.Right{Who: c.Name, Thing: accessrules.NameOf(q.Target), Affordance: q.Affordance, Decision: e.Decision}),
		Principal: make([]api.PrincipalPart, 0, len(c.Parts))}
	for _, part := range c.Parts {
		shown.Principal = append(shown.Principal, api.PrincipalPart(part))
	}
	if with != nil {
		shown.With = with.Name
	}
	if !e.Allow && q.Target != nil {
		code := interact.NotFound
		if f, err := p.Explain(c.Principal, accessrules.Request{Op: accessrules.Find, Target: q.Target}, with); err == nil && f.Allow {
			code = interact.Forbidden
		}
		shown.Code = code.String()
	}
	return writeJSON(w, http.StatusOK, shown)
}

// request returns the request that a client asks about.
func (g *Gateway) request(body api.WhyRequest) (q accessrules.Request, err error) {
	all, ok := accessrules.CallsOf(body.Op)
	if !ok || len(all) != 1 {
		return q, interact.Errorf(interact.Invalid, "one of "+strings.Join(accessrules.OpNames(), ", "), "expected an operation, got %q", tdd.Clip(body.Op))
	}
	q.Op = all[0]
	if q.Target, q.Affordance, err = g.target(body.On); err != nil {
		return q, err
	}
	switch {
	case q.Target == nil && !q.Op.OfNode():
		return q, interact.Errorf(interact.Invalid, "name an agent of this node", "the operation %s concerns an agent", q.Op)
	case q.Target != nil && q.Op.OfNode() && q.Op != accessrules.Manage:
		return q, interact.Errorf(interact.Invalid, "name node in place of the agent", "the operation %s concerns the node", q.Op)
	}
	if len(body.Input) > 0 {
		input := body.Input
		q.Input = accessrules.InputFunc(func() (v any, err error) {
			err = json.Unmarshal(input, &v)
			return v, err
		})
	}
	return q, nil
}
