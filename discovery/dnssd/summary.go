package dnssd

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/internal/lazyregexp"
	"github.com/lmosd/lmosd/td"
)

// namespaces are the prefixes of the discovery terms: the context file has 2021, the text of the specification 2022.
var namespaces = []string{"https://www.w3.org/2021/wot/discovery#", "https://www.w3.org/2022/wot/discovery#", "discovery:"}

// A summary is the part of a TD that an explorer needs. The rest is not validated.
type summary struct {
	kind        Kind
	id, base    string
	things      string   // of a directory: the URL of its list
	describedBy []string // of a link
}

// readSummary decodes the discovery terms of a TD (WoT Discovery §5).
func readSummary(raw []byte) (summary, error) {
	if len(raw) > td.MaxTD {
		return summary{}, fmt.Errorf("the TD exceeds %d bytes: %d", td.MaxTD, len(raw))
	}
	doc, err := jcs.Object(raw, td.MaxTD)
	if err != nil {
		return summary{}, fmt.Errorf("invalid TD: %w", err)
	}
	s := summary{kind: KindThing}
	s.id, _ = doc["id"].(string)
	s.base, _ = doc["base"].(string)
	if len(s.id) > td.MaxID {
		return summary{}, errors.New("the id is too long")
	}
	switch {
	case hasType(doc["@type"], string(KindDirectory)):
		s.kind, s.things = KindDirectory, listOf(doc)
	case hasType(doc["@type"], string(KindLink)):
		s.kind, s.describedBy = KindLink, describedBy(doc["links"])
	}
	return s, nil
}

func hasType(v any, term string) bool {
	names, _ := v.([]any)
	if name, ok := v.(string); ok {
		names = []any{name}
	}
	return slices.ContainsFunc(names, func(v any) bool {
		name, _ := v.(string)
		return name == term || slices.ContainsFunc(namespaces, func(ns string) bool { return name == ns+term })
	})
}

func describedBy(links any) []string {
	var all []string
	list, _ := links.([]any)
	for _, v := range list {
		link, _ := v.(map[string]any)
		href, _ := link["href"].(string)
		if link["rel"] == "describedby" && href != "" && len(all) < linksOfLink {
			all = append(all, href)
		}
	}
	return all
}

// listOf returns the URL of a directory's list, without URI template variables: the href of a form of the property things, or /things.
func listOf(doc map[string]any) string {
	properties, _ := doc["properties"].(map[string]any)
	things, _ := properties["things"].(map[string]any)
	forms, _ := things["forms"].([]any)
	variables, _ := things["uriVariables"].(map[string]any)
	_, paged := variables["limit"]
	for _, v := range forms {
		form, _ := v.(map[string]any)
		href, _ := form["href"].(string)
		if href == "" || !isReadable(form["op"]) {
			continue
		}
		path, template, _ := strings.Cut(href, "{")
		paged = paged && template != "" || strings.Contains(template, "limit")
		if paged && !strings.Contains(path, "?") {
			path += "?limit=" + strconv.Itoa(pageThings)
		}
		return path
	}
	return "/things"
}

// isReadable reports whether a property form supports readproperty, explicitly or by default.
func isReadable(op any) bool {
	switch op := op.(type) {
	case string:
		return op == "readproperty"
	case []any:
		return slices.Contains(op, any("readproperty"))
	}
	return true
}

// readList decodes a page of a list: an array of TDs, or a ThingCollection with members and the next page (WoT Discovery §7.3.2). Members
// are not validated.
func readList(page []byte) (members []json.RawMessage, next string, err error) {
	if json.Unmarshal(page, &members) == nil {
		return members, "", nil
	}
	var collection struct {
		Members []json.RawMessage `json:"members"`
		Next    string            `json:"next"`
	}
	if err := json.Unmarshal(page, &collection); err != nil {
		return nil, "", fmt.Errorf("invalid list of TDs: %w", err)
	}
	return collection.Members, collection.Next, nil
}

var (
	linkOf = lazyregexp.New(`<([^>]*)>([^<]*)`)
	relOf  = lazyregexp.New(`(?i);\s*rel\s*=\s*(?:"([^"]*)"|([^\s";,]+))`)
)

// nextLink returns the target of the first Link header (RFC 8288 §3) with the rel "next", or "". It does not support an angle bracket in a
// quoted parameter: the next page may then not be found.
func nextLink(headers []string) string {
	for _, link := range linkOf().FindAllStringSubmatch(strings.Join(headers, ","), linksMax) {
		rel := relOf().FindStringSubmatch(link[2])
		if rel != nil && slices.Contains(strings.Fields(strings.ToLower(rel[1]+rel[2])), "next") {
			return strings.TrimSpace(link[1])
		}
	}
	return ""
}
