package configs

import (
	"encoding"
	"net/url"
	"strings"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/expose"
	"github.com/lmosd/lmosd/gateway/oidc"
	"github.com/lmosd/lmosd/telemetry/recentlog"
)

// Items returns every key in the order of the file, with its value and its origin, without secrets: the command lines of agents are shortened to
// their programs, and addresses have no user and no query.
func (c *Config) Items() []api.ConfigItem {
	var items []api.ConfigItem
	for f := range c.fields() {
		item := api.ConfigItem{Key: f.key, Value: f.shown()}
		item.Origin, item.Where = c.places[f.key].kind()
		items = append(items, item)
	}
	return items
}

// shown returns the value without secrets, for JSON.
func (f field) shown() any {
	switch v := f.value.Interface().(type) {
	case []string:
		list := make([]string, 0, len(v))
		for _, one := range v {
			if f.key == "agents" {
				one = agentName(one)
			}
			list = append(list, withoutSecrets(one))
		}
		return list
	case string:
		return withoutSecrets(v)
	case Providers:
		return append([]oidc.Provider{}, v...)
	case encoding.TextMarshaler:
		text, _ := v.MarshalText() // the values of this package have no error
		return string(text)
	default:
		return v // a bool or a number
	}
}

// kind returns the kind of origin and the place.
func (p place) kind() (origin, where string) {
	switch kind, rest, _ := strings.Cut(p.text, " "); {
	case p.text == "":
		return api.OriginDefault, ""
	case p.line > 0:
		return api.OriginFile, p.origin()
	case kind == api.OriginEnv, kind == api.OriginFlag, kind == api.OriginProfile:
		return kind, rest
	}
	return api.OriginFile, p.text
}

// agentName shortens a line of the key agents: the rest of a command line may have secrets.
func agentName(line string) string {
	s, err := expose.ParseLine(line)
	if err != nil {
		return recentlog.Redacted // checked before the start
	}
	name, args, _ := strings.Cut(s.Target, " ")
	if name = withoutSecrets(name); args != "" {
		name += " …"
	}
	if s.Name != "" {
		name += " --name " + s.Name
	}
	return name
}

// withoutSecrets removes the user, the query and the fragment of an address, also after a prefix ("mcp:https://…"), and all that has the form of a secret.
func withoutSecrets(text string) string {
	if strings.Contains(text, "://") && !strings.ContainsAny(text, " \n") {
		prefix, address := "", text
		if at := strings.LastIndexByte(text[:strings.Index(text, "://")], ':') + 1; at > 0 {
			prefix, address = text[:at], text[at:]
		}
		if u, err := url.Parse(address); err == nil {
			u.User, u.RawQuery, u.Fragment = nil, "", ""
			text = prefix + u.String()
		} else {
			text = text[:strings.IndexAny(text+"?", "?#")]
		}
	}
	return recentlog.Redact(text)
}
