// Package picture draws the picture of a trace in docs/observability.md from the file of an OpenTelemetry collector.
//
// It is a module of its own, so that the program does not depend on the collector. Its test runs a collector and two nodes.
package picture

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Span is one span with its children, the earliest first.
type Span struct {
	Name, Stage, Kind string
	Instance          string // service.instance.id: the DID of the node
	Start, End        time.Time
	Children          []*Span

	id, parent string
}

// spansFile is a line of the collector's file exporter: OTLP in JSON.
type spansFile struct {
	ResourceSpans []struct {
		Resource   struct{ Attributes attributes }
		ScopeSpans []struct {
			Spans []struct {
				TraceID, SpanID, ParentSpanID, Name string
				StartTimeUnixNano, EndTimeUnixNano  string
				Attributes                          attributes
			}
		}
	}
}

type attributes []struct {
	Key   string
	Value struct{ StringValue string }
}

func (a attributes) get(key string) string {
	for _, one := range a {
		if one.Key == key {
			return one.Value.StringValue
		}
	}
	return ""
}

// Read returns the roots of the traces in the file of a collector.
func Read(r io.Reader) ([]*Span, error) {
	byID := map[string]*Span{}
	for lines := json.NewDecoder(r); ; {
		var f spansFile
		if err := lines.Decode(&f); err == io.EOF {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read the file of the collector: %w", err)
		}
		for _, of := range f.ResourceSpans {
			for _, scope := range of.ScopeSpans {
				for _, s := range scope.Spans {
					start, err := nanoseconds(s.StartTimeUnixNano)
					if err != nil {
						return nil, err
					}
					end, err := nanoseconds(s.EndTimeUnixNano)
					if err != nil {
						return nil, err
					}
					byID[s.TraceID+s.SpanID] = &Span{Name: s.Name, Stage: s.Attributes.get("lmos.stage"), Instance: of.Resource.Attributes.get("service.instance.id"),
						Start: start, End: end, id: s.TraceID + s.SpanID, parent: s.TraceID + s.ParentSpanID}
				}
			}
		}
	}
	var roots []*Span
	for _, s := range byID {
		if parent := byID[s.parent]; parent != nil {
			parent.Children = append(parent.Children, s)
		} else {
			roots = append(roots, s)
		}
	}
	earliest := func(a, b *Span) int { return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(a.id, b.id)) }
	for _, s := range byID {
		slices.SortFunc(s.Children, earliest)
	}
	slices.SortFunc(roots, earliest)
	return roots, nil
}

func nanoseconds(text string) (time.Time, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	return time.Unix(0, n), err
}

// walk calls f for s and all below it, in the order of the picture.
func (s *Span) walk(depth int, f func(s *Span, depth int)) {
	f(s, depth)
	for _, c := range s.Children {
		c.walk(depth+1, f)
	}
}

// Structure returns a line for each span: its depth, its name and stage, and its node, which are numbered by their appearance.
func Structure(root *Span) (lines []string) {
	nodes := map[string]string{}
	root.walk(0, func(s *Span, depth int) {
		if nodes[s.Instance] == "" {
			nodes[s.Instance] = "node " + string(rune('A'+len(nodes)))
		}
		lines = append(lines, fmt.Sprintf("%d %s, stage %s, %s", depth, s.Name, s.Stage, nodes[s.Instance]))
	})
	return lines
}

// structureMark begins the comment with the structure of a picture.
const structureMark = "<!-- "

// StructureOf returns the structure of the span tree in a picture.
func StructureOf(svg []byte) (lines []string) {
	for _, m := range regexp.MustCompile(`(?m)^`+structureMark+`(.*) -->$`).FindAllSubmatch(svg, -1) {
		lines = append(lines, string(m[1]))
	}
	return lines
}

// Sizes of the picture, in pixels.
const (
	width, labelWidth, rowHeight, top = 760, 330, 26, 30
	barWidth                          = width - labelWidth - 90
)

var colors = []string{"#2f6db5", "#c26a1b"}

// Draw draws the spans below root as a waterfall: a line for each span, with a bar of its time.
func Draw(root *Span) []byte {
	var b bytes.Buffer
	lines := Structure(root)
	end := root.End
	root.walk(0, func(s *Span, _ int) {
		if s.End.After(end) {
			end = s.End
		}
	})
	total := max(end.Sub(root.Start), 1)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img" font-family="sans-serif" font-size="13">`+"\n", width, top+rowHeight*len(lines)+10)
	fmt.Fprintf(&b, "<title>A call over two nodes: %d spans</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n", len(lines))
	fmt.Fprintf(&b, `<text x="10" y="20" fill="#555555">span and stage</text><text x="%d" y="20" fill="#555555">0</text><text x="%d" y="20" fill="#555555" text-anchor="end">%s</text>`+"\n",
		labelWidth, labelWidth+barWidth, milliseconds(total))
	i := 0
	root.walk(0, func(s *Span, depth int) {
		y := top + rowHeight*i
		node := lines[i][strings.LastIndexByte(lines[i], ' ')+1:]
		color := colors[int(node[0]-'A')%len(colors)]
		x := labelWidth + int(int64(barWidth)*int64(max(s.Start.Sub(root.Start), 0))/int64(total))
		w := max(int(int64(barWidth)*int64(s.End.Sub(s.Start))/int64(total)), 2)
		fmt.Fprintf(&b, "%s%s -->\n", structureMark, html.EscapeString(lines[i]))
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="#222222">%s</text>`+"\n", 10+14*depth, y+17, html.EscapeString(s.Name+" · "+s.Stage))
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s" text-anchor="end">node %s</text>`+"\n", labelWidth-12, y+17, color, node)
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="14" rx="2" fill="%s"/><text x="%d" y="%d" fill="#222222">%s</text>`+"\n", x, y+6, w, color, x+w+5, y+17, milliseconds(s.End.Sub(s.Start)))
		i++
	})
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/1e6) }
