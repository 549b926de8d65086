// Package prompt collects the input that a running action requires, from a terminal or from arguments.
//
// Messages come from untrusted agents: control characters are replaced, and no URL is opened automatically.
package prompt

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
)

// Words that a person types instead of an answer.
const (
	noWord   = "!decline"
	stopWord = "!cancel"
)

// maxShown limits the shown lines of a message.
const maxShown = 40

var (
	errDeclined = errors.New("declined")
	errStopped  = errors.New("cancelled")
)

// A Person answers at a terminal.
type Person struct {
	in  *bufio.Reader
	to  *terminal.Screen
	who string // the agent that requires the input
}

// New returns the person at the terminal of c, for requests of the agent who.
func New(c *cli.Console, who string) *Person {
	return &Person{bufio.NewReader(c.Stdin), c.Talk, who}
}

// Ask prompts for all inputs, in the order of their keys. The end of the terminal's input cancels. The error is that of ctx.
func (p *Person) Ask(ctx context.Context, in interact.Inputs) (interact.Answers, error) {
	answers := interact.Answers{}
	for i, key := range slices.Sorted(maps.Keys(in)) {
		if i > 0 {
			p.to.Line("")
		}
		content, err := p.one(ctx, in[key])
		switch {
		case err == nil:
			answers[key] = interact.Answer{Action: interact.Accept, Content: content}
		case errors.Is(err, errDeclined):
			answers[key] = interact.Answer{Action: interact.Decline}
		case errors.Is(err, errStopped) || errors.Is(err, io.EOF):
			answers[key] = interact.Answer{Action: interact.Dismiss}
		default:
			return nil, err
		}
	}
	return answers, nil
}

// Confirm prompts for yes or no; an empty line and the end of the terminal's input are no. The error is that of ctx.
func Confirm(ctx context.Context, c *cli.Console, question string) (bool, error) {
	text, err := New(c, "").line(ctx, terminal.OneLine(question)+" [y/N] ")
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, errDeclined), errors.Is(err, errStopped):
		return false, nil
	case err != nil:
		return false, err
	}
	return slices.Contains([]string{"y", "yes"}, strings.ToLower(text)), nil
}

func (p *Person) one(ctx context.Context, in interact.Input) (json.RawMessage, error) {
	switch in.Kind {
	case interact.InputURL:
		return nil, p.address(ctx, in)
	case interact.InputModel:
		return p.model(ctx, in)
	case interact.InputRoots:
		return p.folders(ctx)
	case interact.InputMessage:
		p.heading("asks", in.Message)
		text, err := p.answer(ctx, "  answer: ")
		return input.Quoted(text), err
	}
	p.heading("asks", in.Message)
	return p.form(ctx, in.Schema)
}

// heading prints the agent, its message, and how to decline.
func (p *Person) heading(verb, message string) {
	first, rest, _ := strings.Cut(strings.TrimSpace(message), "\n")
	p.to.Item(p.to.Paint(terminal.Bold, terminal.OneLine(p.who)+" "+verb+": "), terminal.Columns(terminal.OneLine(p.who)+" "+verb+": "), first)
	p.text(rest)
	p.to.Line(p.to.Paint(terminal.Dim, "  "+noWord+" declines, "+stopWord+" cancels"))
}

// text prints further lines of a message.
func (p *Person) text(lines string) {
	n := 0
	for line := range strings.Lines(lines) {
		if n++; n > maxShown {
			p.to.Line("  …")
			return
		}
		p.to.Item("  ", 2, line)
	}
}

// answer reads one non-empty line.
func (p *Person) answer(ctx context.Context, label string) (string, error) {
	for {
		if text, err := p.line(ctx, label); text != "" || err != nil {
			return text, err
		}
	}
}

// line reads one line. Declining and cancelling are errors.
func (p *Person) line(ctx context.Context, label string) (string, error) {
	p.to.Print(label)
	type read struct {
		text string
		err  error
	}
	got := make(chan read, 1)
	go func() { // it ends with a line, or with the process: a terminal read cannot be interrupted
		text, err := p.in.ReadString('\n')
		if err != nil && text != "" {
			err = nil
		}
		got <- read{strings.TrimSpace(text), err}
	}()
	select {
	case r := <-got:
		switch {
		case r.err != nil:
			p.to.Line("")
			return "", r.err
		case r.text == noWord:
			return "", errDeclined
		case r.text == stopWord:
			return "", errStopped
		}
		return r.text, nil
	case <-ctx.Done():
		p.to.Line("")
		return "", ctx.Err()
	}
}

// address shows a URL that the person should open. Confirming is only consent (MCP 2026-07-28, "URL mode elicitation").
func (p *Person) address(ctx context.Context, in interact.Input) error {
	p.heading("asks you to open an address", in.Message)
	at, err := url.Parse(in.URL)
	switch {
	case in.URL == "": // the message or another channel has the address
	case err != nil || at.Host == "" || at.Scheme != "https" && at.Scheme != "http":
		p.to.Line("  " + terminal.OneLine(in.URL) + p.to.Paint(terminal.Red, "   not a web address: decline it"))
	default:
		p.to.Line("  " + terminal.OneLine(in.URL))
		p.to.Line(p.to.Paint(terminal.Dim, "  it leads to "+terminal.OneLine(at.Host)+"; nothing was opened"))
	}
	_, err = p.line(ctx, "  Enter when you agree: ")
	return err
}

// model shows a request to a model. The person answers it.
func (p *Person) model(ctx context.Context, in interact.Input) (json.RawMessage, error) {
	p.heading("requests a model completion; you answer in its place", in.Message)
	for _, m := range conversation(in.Params) {
		p.to.Line(p.to.Paint(terminal.Bold, "  "+terminal.OneLine(m.role)))
		p.text(m.text)
	}
	p.to.Line(p.to.Paint(terminal.Dim, "  your words; an empty line ends them"))
	var words []string
	for {
		text, err := p.line(ctx, "  > ")
		switch {
		case err != nil && (!errors.Is(err, io.EOF) || len(words) == 0):
			return nil, err
		case text == "" && len(words) > 0:
			return freeText(strings.Join(words, "\n")), nil
		case text != "":
			words = append(words, text)
		}
	}
}

// A message of a conversation with a model.
type message struct{ role, text string }

// conversation reads the messages for a model (MCP 2026-07-28, "CreateMessageRequest"). Other content than text is named.
func conversation(params json.RawMessage) (all []message) {
	var p struct {
		System   string `json:"systemPrompt"`
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
	}
	_ = json.Unmarshal(params, &p) // an invalid request is not shown
	if p.System != "" {
		all = append(all, message{"instructions", p.System})
	}
	for _, m := range p.Messages {
		all = append(all, message{m.Role, textOf(m.Content)})
	}
	return all
}

// textOf returns the text of a block, or of several.
func textOf(content json.RawMessage) string {
	type block struct{ Type, Text string }
	var several []block
	if json.Unmarshal(content, &several) != nil {
		several = make([]block, 1)
		_ = json.Unmarshal(content, &several[0])
	}
	var lines []string
	for _, b := range several {
		if b.Type != "text" {
			b.Text = "(" + b.Type + ")"
		}
		lines = append(lines, b.Text)
	}
	return strings.Join(lines, "\n")
}

// folders prompts for the folders that the agent may use.
func (p *Person) folders(ctx context.Context) (json.RawMessage, error) {
	p.heading("asks", "Which folders may it work in?")
	for {
		text, err := p.line(ctx, "  folders, with spaces between (none): ")
		if err != nil {
			return nil, err
		}
		roots, err := roots(strings.Fields(text))
		if err == nil {
			return roots, nil
		}
		p.wrong(err.Error())
	}
}

func (p *Person) wrong(why string) {
	p.to.Item("  "+p.to.Paint(terminal.Red, "✗")+" ", 4, why)
}

// freeText returns the answer of a model (MCP 2026-07-28, "CreateMessageResult"), given by a person.
func freeText(text string) json.RawMessage {
	return encoded(map[string]any{"role": "assistant", "model": "person", "stopReason": "endTurn",
		"content": map[string]string{"type": "text", "text": text}})
}

// roots returns folders as an answer (MCP 2026-07-28, "ListRootsResult"). The error is of code [interact.Usage].
func roots(dirs []string) (json.RawMessage, error) {
	type root struct {
		URI  string `json:"uri"`
		Name string `json:"name"`
	}
	roots := []root{}
	for _, dir := range dirs {
		whole, err := filepath.Abs(dir)
		if err != nil {
			return nil, cli.Usage("name it from the root", "the folder %s cannot be found", dir)
		}
		path := filepath.ToSlash(whole)
		if !strings.HasPrefix(path, "/") {
			path = "/" + path // C:/work is file:///C:/work
		}
		roots = append(roots, root{(&url.URL{Scheme: "file", Path: path}).String(), filepath.Base(whole)})
	}
	return encoded(map[string]any{"roots": roots}), nil
}

// encoded returns v as JSON: strings, lists and maps of them.
func encoded(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
