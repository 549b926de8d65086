package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// openAgent shows the agent of the tests.
func (p *page) openAgent() {
	p.t.Helper()
	p.findsAgent()
	p.goTo(p.agentRoute("Weather station"))
	p.waitText("h1", "Weather station")
	p.loaded()
}

// action returns the selector of an action, which is open then.
func (p *page) action(name string) string {
	p.t.Helper()
	action := fmt.Sprintf(`[data-testid="action"][data-name=%q]`, name)
	p.wait("the action "+name, "document.querySelector("+quote(action)+")")
	p.do(evalVoid(fmt.Sprintf(`if (document.querySelector(%[1]s).dataset.open !== 'true') document.querySelector(%[1]s + ' .disclose').click()`, quote(action))))
	p.wait("the action is open", "document.querySelector("+quote(action+` [data-testid="call"]`)+")")
	return action
}

// ended waits for the end of a call, and returns its status.
func (p *page) ended(action string) string {
	p.t.Helper()
	status := "document.querySelector(" + quote(action+` [data-testid="answer"]`) + ")?.dataset.status"
	p.wait("the call has ended", "["+"'completed','failed','canceled'].includes("+status+") || document.querySelector("+quote(action+" .failure")+")")
	s, _ := p.eval(status + " ?? 'failed'").(string)
	return s
}

// TestCall calls an action by its form with the keyboard. What is left out is absent.
func TestCall(t *testing.T) {
	t.Parallel()
	p := signedIn(t, mesh.Members[0], wide, "call")
	p.openAgent()
	action := p.action("forecast")
	p.do(evalVoid("document.querySelector(" + quote(action+" form input") + ").focus()"))
	p.keys("Lima\r")
	if s := p.ended(action); s != "completed" {
		t.Fatalf("the call is %s: %s", s, p.text(action))
	}
	p.do(evalVoid("document.activeElement.blur(); scrollTo(0, 0)"))
	p.shot("agent-called")
	text := p.text(action + ` [data-testid="answer-text"]`)
	if !strings.Contains(text, `"Lima"`) || strings.Contains(text, "null") || strings.Contains(text, "unit") || strings.Contains(text, "tags") {
		t.Errorf("the agent received %s", text)
	}
}

// TestInvalidInput: the checks of the node are shown at the fields.
func TestInvalidInput(t *testing.T) {
	t.Parallel()
	p := signedIn(t, mesh.Members[0], wide, "call")
	p.openAgent()
	action := p.action("forecast")
	p.click(action + ` [data-testid="form-mode"] button:last-child`)
	p.wait("the input as JSON", "document.querySelector("+quote(action+` [data-testid="json-input"]`)+")")
	p.do(evalVoid(fmt.Sprintf(`{ const e = document.querySelector(%s); e.value = '{"city": 7}'; e.dispatchEvent(new InputEvent('input', {bubbles: true})) }`,
		quote(action+` [data-testid="json-input"]`))))
	p.click(action + ` [data-testid="call"]`)
	p.wait("the failure", "document.querySelector("+quote(action+" .failure")+")")
	if text := p.text(action); !strings.Contains(text, "city") {
		t.Errorf("the page shows %s", text)
	}
}

// TestParts: parts of an answer are shown before its end.
func TestParts(t *testing.T) {
	// Not parallel: the steps of the agent are shared.
	p := signedIn(t, mesh.Members[0], wide, "admin")
	p.openAgent()
	action := p.action("count")
	p.click(action + ` [data-testid="call"]`)
	for i := range 3 {
		shop.release <- struct{}{}
		p.wait(fmt.Sprintf("part %d", i+1), fmt.Sprintf("document.querySelector(%s)?.innerText.startsWith('%d ')", quote(action+` [data-testid="part-count"]`), i+1))
		if s := p.eval("document.querySelector(" + quote(action+` [data-testid="answer"]`) + ").dataset.status"); i < 2 && s != "running" {
			t.Errorf("after part %d the call is %v", i+1, s)
		}
	}
	if s := p.ended(action); s != "completed" {
		t.Errorf("the call is %s", s)
	}
	p.wait("the stages", "document.querySelector("+quote(action+` [data-testid="trace"] svg, `+action+` [data-testid="trace"] li, `+action+` [data-testid="trace"] .bar`)+")")
}

// TestCancel: cancel ends the call at the agent.
func TestCancel(t *testing.T) {
	// Not parallel: the count of the agent is shared.
	p := signedIn(t, mesh.Members[0], wide, "call")
	p.openAgent()
	before := shop.canceled.Load()
	action := p.action("endless")
	p.click(action + ` [data-testid="call"]`)
	p.waitText(action+` [data-testid="answer"]`, "part 2")
	p.click(action + ` [data-testid="cancel"]`)
	if s := p.ended(action); s != "canceled" {
		t.Errorf("the call is %s", s)
	}
	for end := time.Now().Add(10 * time.Second); shop.canceled.Load() == before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the agent still runs")
		}
	}
}

// TestAnswersAreData: HTML and SVG of an agent are not rendered, and a large answer is cut in the page.
func TestAnswersAreData(t *testing.T) {
	t.Parallel()
	p := signedIn(t, mesh.Members[0], wide, "call")
	p.openAgent()
	for _, name := range []string{"page", "picture", "large"} {
		action := p.action(name)
		p.click(action + ` [data-testid="call"]`)
		if s := p.ended(action); s != "completed" {
			t.Errorf("%s is %s: %s", name, s, p.text(action))
		}
	}
	if v := p.eval("window.evil === undefined && !document.querySelector('#evil')"); v != true {
		t.Error("the page rendered an answer")
	}
	if n, _ := p.eval("document.body.innerText.length").(float64); n > 2<<20 {
		t.Errorf("the page has %v characters", n)
	}
	p.wait("the note that a part is shown", "document.querySelector('[data-testid=\"cut\"]')")
}

// TestFailure shows the code and the text of a failed action.
func TestFailure(t *testing.T) {
	t.Parallel()
	p := signedIn(t, mesh.Members[0], phone, "call")
	p.openAgent()
	action := p.action("fail")
	p.click(action + ` [data-testid="call"]`)
	p.wait("the failure", "document.querySelector("+quote(action+" .failure")+")")
	if text := p.text(action); !strings.Contains(text, "LMOS-") || !strings.Contains(text, "no station") {
		t.Errorf("the page shows %s", text)
	}
}

// TestTaskThatAsks answers the question of a running task.
func TestTaskThatAsks(t *testing.T) {
	t.Parallel()
	p := signedIn(t, mesh.Members[0], wide, "call")
	p.openAgent()
	action := p.action("confirm")
	p.click(action + ` [data-testid="call"]`)
	p.waitText(action+` [data-testid="inputs"]`, "Who confirms?")
	p.do(evalVoid("document.querySelector(" + quote(action+` [data-testid="input-form"] input`) + ").focus()"))
	p.keys("Ada")
	p.click(action + ` [data-testid="answer-task"]`)
	p.waitText(action, "confirmed by Ada")
}

// TestPropertyAndEvent reads and observes a property, and listens to an event.
func TestPropertyAndEvent(t *testing.T) {
	// Not parallel: the value of the property is shared.
	p := signedIn(t, mesh.Members[0], wide, "call")
	p.openAgent()
	property, event := `[data-testid="property"][data-name="level"]`, `[data-testid="event"][data-name="alarm"]`
	for _, one := range []string{property, event} {
		p.wait(one, "document.querySelector("+quote(one)+")")
		p.do(evalVoid(fmt.Sprintf(`if (document.querySelector(%[1]s).dataset.open !== 'true') document.querySelector(%[1]s + ' .disclose').click()`, quote(one))))
	}
	p.click(property + ` [data-testid="read"]`)
	p.waitText(property+` [data-testid="answer-text"]`, "3")
	p.click(property + ` [data-testid="observe"]`)
	p.waitText(property+` [data-testid="observe"]`, "Stop")
	for n := 40; !strings.Contains(p.text(property), "4"); n++ { // until the subscription has begun
		shop.level.Set(n)
		if n > 200 {
			t.Fatalf("the page shows %s", p.text(property))
		}
		p.eval("new Promise((resolve) => setTimeout(() => resolve(true), 50))")
	}
	p.click(event + ` [data-testid="listen"]`)
	p.waitText(event+` [data-testid="listen"]`, "Stop")
	for n := 0; !strings.Contains(p.text(event), "fire"); n++ {
		shop.alarm.Emit("fire")
		if n > 200 {
			t.Fatalf("the page shows %s", p.text(event))
		}
		p.eval("new Promise((resolve) => setTimeout(() => resolve(true), 50))")
	}
}

// TestCopyAs shows the call as a command line and as source text.
func TestCopyAs(t *testing.T) {
	t.Parallel()
	p := open(t, mesh.Members[0], wide, "#/agents")
	p.openAgentWithout()
	action := `[data-testid="action"][data-name="forecast"]`
	p.do(evalVoid(fmt.Sprintf(`if (document.querySelector(%[1]s).dataset.open !== 'true') document.querySelector(%[1]s + ' .disclose').click()`, quote(action))))
	p.click(action + ` [data-testid="copy-as"]`)
	for i, want := range []string{"lmosd call ", "curl ", "import ", "fetch("} {
		p.click(fmt.Sprintf(`%s [data-testid="copy-as-panel"] .segments button:nth-child(%d)`, action, i+1))
		p.waitText(action+` [data-testid="copy-text"]`, want)
	}
}

// openAgentWithout shows the agent without a session: its forms can be looked at, and no call is made.
func (p *page) openAgentWithout() {
	p.t.Helper()
	p.openAgent()
	p.wait("the hint of signing in", `document.querySelector('[data-testid="sign-in"]')`)
	if p.eval(`document.querySelector('[data-testid="call"]') === null`) != true {
		p.t.Error("a page without a session has a button to call")
	}
}
