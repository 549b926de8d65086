package coap

import (
	"net/url"
	"slices"
	"strings"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
)

// A resource is the target of a request (RFC 7252 §5.10.1), taken from its path.
type resource struct {
	kind   kind
	id     string // of the Thing, as in the path
	name   string // of the affordance
	action string // the id of a run
}

// A kind is the kind of a resource.
type kind uint8

const (
	noResource kind = iota
	wellKnown
	theThing
	properties
	property
	actions
	action
	run
	events
	event
)

// kinds are the resources below a Thing by name, for each number of segments after the name.
var kinds = map[string][]kind{
	"properties": {properties, property},
	"actions":    {actions, action, run},
	"events":     {events, event},
}

// resourceAt parses the segments of a path. The id is the part before the first matching name of kinds: its slashes separate segments
// unless they are escaped.
func resourceAt(path []string) resource {
	if len(path) == 2 && path[0] == ".well-known" && path[1] == "core" {
		return resource{kind: wellKnown}
	}
	if len(path) < 2 || path[0] != "things" || path[1] == "" {
		return resource{}
	}
	for i := 2; i < len(path); i++ {
		names := path[i+1:]
		byLength := kinds[path[i]]
		if len(names) >= len(byLength) || slices.Contains(names, "") {
			continue
		}
		p := resource{kind: byLength[len(names)], id: strings.Join(path[1:i], "/")}
		if len(names) > 0 {
			p.name = names[0]
		}
		if len(names) > 1 {
			p.action = names[1]
		}
		return p
	}
	return resource{kind: theThing, id: strings.Join(path[1:], "/")}
}

// ids returns the possible ids of a path: unchanged, and unescaped once more than CoAP requires.
func (p resource) ids() []string {
	if plain, err := url.PathUnescape(p.id); err == nil && plain != p.id {
		return []string{p.id, plain}
	}
	return []string{p.id}
}

// operations are the message types of requests, by resource and method. Zero means a response without the mesh.
var operations = map[kind]map[codes.Code]interact.Type{
	wellKnown: {codes.GET: 0},
	theThing:  {codes.GET: 0},
	properties: {codes.GET: interact.ReadAllProperties, messaging.Fetch: interact.ReadMultipleProperties,
		codes.PUT: interact.WriteMultipleProperties, messaging.Patch: interact.WriteMultipleProperties,
		messaging.IPatch: interact.WriteMultipleProperties},
	property: {codes.GET: interact.ReadProperty, codes.PUT: interact.WriteProperty},
	actions:  {codes.GET: interact.QueryAllActions},
	action:   {codes.POST: interact.InvokeAction, codes.GET: interact.QueryAction},
	run:      {codes.GET: interact.QueryAction, codes.DELETE: interact.CancelAction, codes.POST: interact.CancelAction},
	events:   {codes.GET: interact.SubscribeAllEvents},
	event:    {codes.GET: interact.SubscribeEvent, messaging.Fetch: interact.SubscribeEvent},
}

// parseResource returns the resource of a request.
func parseResource(q *messaging.Packet) (resource, interact.Type, error) {
	p := resourceAt(q.Texts(message.URIPath))
	methods, ok := operations[p.kind]
	if !ok {
		return p, 0, interact.Errorf(interact.NotFound, "things have /things/{id}, and below it properties, actions and events",
			"no resource at this path")
	}
	t, ok := methods[q.Code]
	if !ok {
		return p, 0, interact.Errorf(interact.NotAllowed, "see the table of coap.Server", "this method is not supported here")
	}
	return p, t, nil
}
