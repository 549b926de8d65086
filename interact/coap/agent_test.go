package coap

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
	"github.com/lmosd/lmosd/interact/form"
)

// TestAgentsThatMisbehave: each is an error of its own interaction, and soon.
func TestAgentsThatMisbehave(t *testing.T) {
	t.Parallel()
	text := big(5000)
	serveBlocks := func(change func(b messaging.Block, m *messaging.Packet)) func(a *agentPipe, q *messaging.Packet) {
		return func(a *agentPipe, q *messaging.Packet) {
			want, _ := q.Block(message.Block2)
			if want.SZX = 6; !q.IsRequest() {
				return
			}
			want.More = false
			part, is, _ := want.Cut([]byte(text))
			a.says(q, codes.Content, string(part), func(m *messaging.Packet) {
				change(is, m)
				if _, ok := m.Block(message.Block2); !ok {
					m.AddUint(message.Block2, is.Value())
				}
			})
		}
	}
	n := 0
	tests := []struct {
		name  string
		m     *interact.Message
		react func(a *agentPipe, q *messaging.Packet)
		code  interact.Code
		begun bool
	}{
		{"a block of another number", read("p"), serveBlocks(func(b messaging.Block, m *messaging.Packet) {
			if b.Num == 2 {
				m.AddUint(message.Block2, messaging.Block{Num: 1, More: true, SZX: 6}.Value())
			}
		}), interact.AgentFailed, false},
		{"a first block that is not", read("p"), serveBlocks(func(_ messaging.Block, m *messaging.Packet) {
			m.AddUint(message.Block2, messaging.Block{Num: 1, More: true, SZX: 6}.Value())
		}), interact.AgentFailed, false},
		{"a block that is short", read("p"), serveBlocks(func(_ messaging.Block, m *messaging.Packet) {
			m.Payload = m.Payload[:len(m.Payload)-1]
		}), interact.AgentFailed, false},
		{"a block that is empty, for ever", read("p"), serveBlocks(func(b messaging.Block, m *messaging.Packet) {
			m.Payload = nil
			m.AddUint(message.Block2, messaging.Block{Num: b.Num, More: true, SZX: 6}.Value())
		}), interact.AgentFailed, false},
		{"blocks of a reserved size", read("p"), serveBlocks(func(b messaging.Block, m *messaging.Packet) {
			m.AddUint(message.Block2, messaging.Block{Num: b.Num, More: true, SZX: 7}.Value())
		}), interact.AgentFailed, false},
		{"blocks that grow", read("p"), serveBlocks(func(b messaging.Block, m *messaging.Packet) {
			if b.Num == 0 {
				m.Payload = m.Payload[:16]
				m.AddUint(message.Block2, messaging.Block{More: true}.Value())
			}
		}), interact.AgentFailed, false},
		{"a size beyond the limit", read("p"), serveBlocks(func(_ messaging.Block, m *messaging.Packet) { m.AddUint(message.Size2, 1<<31) }),
			interact.TooLarge, false},
		{"blocks without an end", read("p"), func(a *agentPipe, q *messaging.Packet) {
			b, _ := q.Block(message.Block2)
			a.says(q, codes.Content, strings.Repeat("x", 1024), option(message.Block2, messaging.Block{Num: b.Num, More: true, SZX: 6}.Value()))
		}, interact.TooLarge, false},
		{"another value in each block", read("p"), serveBlocks(func(_ messaging.Block, m *messaging.Packet) {
			n++
			m.Add(message.ETag, fmt.Appendf(nil, "%d", n))
		}), interact.AgentFailed, false},
		{"a block is refused", read("p"), func(a *agentPipe, q *messaging.Packet) {
			if b, ok := q.Block(message.Block2); ok && b.Num > 0 {
				a.says(q, codes.Forbidden, "no more")
				return
			}
			a.says(q, codes.Content, text[:1024], option(message.Block2, 8|6))
		}, interact.Forbidden, false},
		{"a block is missing", read("p"), func(a *agentPipe, q *messaging.Packet) {
			if _, ok := q.Block(message.Block2); !ok {
				a.says(q, codes.Content, text[:1024], option(message.Block2, 8|6))
			}
		}, interact.Unreachable, true},
		{"an unknown critical option", read("p"), func(a *agentPipe, q *messaging.Packet) {
			a.says(q, codes.Content, "1", option(65001,
				1))
		}, interact.AgentFailed, false},
		{"no JSON", read("p"), func(a *agentPipe, q *messaging.Packet) {
			a.says(q, codes.Content, "{\x1b", option(message.ContentFormat, 50))
		}, interact.AgentFailed, false},
		{"an answer that says go on", read("p"), func(a *agentPipe, q *messaging.Packet) { a.says(q, codes.Continue, "") },
			interact.AgentFailed, false},
		{"it asks to go on after the last block", invoke("go", text), func(a *agentPipe, q *messaging.Packet) {
			b, _ := q.Block(message.Block1)
			a.says(q, codes.Continue, "", option(message.Block1, b.Value()))
		}, interact.AgentFailed, false},
		{"it takes a part for the whole", invoke("go", text), func(a *agentPipe, q *messaging.Packet) { a.says(q, codes.Changed, "") },
			interact.AgentFailed, false},
		{"it answers another block", invoke("go", text), func(a *agentPipe, q *messaging.Packet) {
			a.says(q, codes.Continue, "",
				option(message.Block1, 7<<4|8|6))
		}, interact.AgentFailed, false},
		{"it takes nothing so large", invoke("go", text), func(a *agentPipe, q *messaging.Packet) {
			b, _ := q.Block(message.Block1)
			a.says(q, codes.RequestEntityTooLarge, "", option(message.Block1, b.Value()))
		}, interact.TooLarge, false},
		{"it dies between two blocks", invoke("go", text), func(a *agentPipe, q *messaging.Packet) {
			if b, _ := q.Block(message.Block1); b.Num == 0 {
				a.says(q, codes.Continue, "", option(message.Block1, b.Value()))
			}
		}, interact.Unreachable, true},
		{"it never acknowledges", invoke("go", ""), func(*agentPipe, *messaging.Packet) {}, interact.Unreachable, true},
		{"it never answers", invoke("go", ""), func(a *agentPipe, q *messaging.Packet) {
			_, _ = a.Write(messaging.Bare(message.Acknowledgement,
				q.Mid))
		}, interact.Timeout, true},
		{"it never answers what is not confirmed", invoke("non", ""), func(*agentPipe, *messaging.Packet) {}, interact.Unreachable, true},
		{"it rejects", invoke("go", ""), func(a *agentPipe, q *messaging.Packet) { _, _ = a.Write(messaging.Bare(message.Reset, q.Mid)) },
			interact.AgentFailed, false},
		{"it speaks another language", invoke("go", ""), func(a *agentPipe, _ *messaging.Packet) {
			_,
				_ = a.Write([]byte("HTTP/1.1 200 OK\r\n"))
		}, interact.Unreachable, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, a := piped(t, tt.react)
				defer a.end(client)
				begun := time.Now()
				_, err := interact.Call(t.Context(), client.Thing(describe(t, "", pipeTD)), tt.m)
				if e := wantError(t, err, tt.code); e.Started != tt.begun || time.Since(begun) > form.DefaultTimeout {
					t.Errorf("begun %v after %v: %v", e.Started, time.Since(begun), e)
				}
			})
		})
	}
}

// TestDeadlines: the deadline of the message applies, and a cancellation is reported as one.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, a := piped(t, func(a *agentPipe, q *messaging.Packet) {
			_, _ = a.Write(messaging.Bare(message.Acknowledgement, q.Mid))
		})
		defer a.end(client)
		thing := client.Thing(describe(t, "", pipeTD))
		m := invoke("go", "")
		m.Deadline = time.Now().Add(3 * time.Second)
		begun := time.Now()
		_, err := interact.Call(t.Context(), thing, m)
		wantError(t, err, interact.Timeout)
		if took := time.Since(begun); took != 3*time.Second {
			t.Errorf("it took %v", took)
		}
		m.Deadline = begun
		_, err = interact.Call(t.Context(), thing, m)
		if e := wantError(t, err, interact.Unreachable); e.Started {
			t.Errorf("after its deadline it was sent: %v", e)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err = interact.Call(ctx, thing, invoke("go", ""))
		if e := wantError(t, err, interact.Cancelled); !e.Started {
			t.Errorf("not begun: %v", e)
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		for _, e := range thing.Do(ctx, observe("p")) {
			err = e
		}
		wantError(t, err, interact.Cancelled)
	})
}

// TestSmallerBlocks: the agent may request them, in each of its responses (RFC 7959 §2.3, §2.9.3).
func TestSmallerBlocks(t *testing.T) {
	t.Parallel()
	text := big(5000)
	for name, code := range map[string]codes.Code{"4.13": codes.RequestEntityTooLarge, "2.31": codes.Continue,
		"2.04 for each": codes.Changed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var got []byte
				client, a := piped(t, func(a *agentPipe, q *messaging.Packet) {
					b, _ := q.Block(message.Block1)
					if size, ok := q.Uint(message.Size1); ok != (b.Num == 0) || ok && size != 5000 {
						t.Errorf("block %d says Size1 %d", b.Num, size)
					}
					if code == codes.RequestEntityTooLarge && b.SZX > 2 {
						a.says(q, code, "", option(message.Block1, messaging.Block{SZX: 2}.Value()))
						return
					}
					if b.Offset() != len(got) {
						t.Errorf("block %+v after %d bytes", b, len(got))
					}
					if got = append(got, q.Payload...); !b.More {
						a.says(q, codes.Changed, "done", option(message.ContentFormat, 0))
						return
					}
					ack := b
					ack.SZX = min(ack.SZX, 3)
					if code == codes.Changed {
						ack.More = false
						a.says(q, code, "", option(message.Block1, ack.Value()))
						return
					}
					a.says(q, codes.Continue, "", option(message.Block1, ack.Value()))
				})
				defer a.end(client)
				r, err := interact.Call(t.Context(), client.Thing(describe(t, "", pipeTD)), invoke("go", text))
				if err != nil || string(got) != text || string(r.Data) != "done" {
					t.Errorf("%v: %d bytes came", err, len(got))
				}
			})
		})
	}
}

// TestAValueThatChanges while it is read is read again.
func TestAValueThatChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		values := []string{big(3000), big(3001)}
		n := 0
		client, a := piped(t, func(a *agentPipe, q *messaging.Packet) {
			b, _ := q.Block(message.Block2)
			if b.Num == 2 && n == 0 {
				n = 1 // it changes
			}
			part, is, _ := messaging.Block{Num: b.Num, SZX: 6}.Cut([]byte(values[n]))
			a.says(q, codes.Content, string(part), option(message.ETag, uint32(n+1)), option(message.Block2, is.Value()))
		})
		defer a.end(client)
		r, err := interact.Call(t.Context(), client.Thing(describe(t, "", pipeTD)), read("p"))
		if err != nil || string(r.Data) != values[1] {
			t.Errorf("got %v", err)
		}
	})
}

const taskTD = `"actions": {"go": {"forms": [{"href": "coap://10.0.0.1/go"}]},
	"sync": {"synchronous": true, "forms": [{"href": "coap://10.0.0.1/go"}]}}`

func TestTasksOfAgents(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		m      *interact.Message
		first  string
		states []string
		want   string
		code   interact.Code
	}{
		{"to its end", invoke("go", ""), "", []string{`{"state":"pending"}`, `{"status":"running"}`,
			`{"state":"completed","output":{"n":7}}`}, `pending running completed{"n":7}`, 0},
		{"without output", invoke("go", ""), `{"status":"running"}`, []string{`{"state":"completed","output":null}`},
			`running completed`, 0},
		{"completed at once", invoke("go", ""), `{"state":"completed","output":7}`, nil, `completed7`, 0},
		{"failed", invoke("go", ""), "", []string{`{"state":"failed","error":{"title":"no fuel","detail":"buy some"}}`}, `pending`,
			interact.AgentFailed},
		{"cancelled by another", invoke("go", ""), "", []string{`{"state":"cancelled"}`}, `pending`, interact.Cancelled},
		{"a state that is none", invoke("go", ""), "", []string{`[]`}, `pending`, interact.AgentFailed},
		{"an answer that is no state", invoke("go", ""), `{"made":"x"}`, nil, `completed{"made":"x"}`, 0},
		{"an action that is synchronous", invoke("sync", ""), `{"state":"running"}`, nil, `completed{"state":"running"}`, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				states := slices.Clone(tt.states)
				client, a := piped(t, func(a *agentPipe, q *messaging.Packet) {
					if q.Code == codes.POST {
						a.says(q, codes.Created, tt.first, func(m *messaging.Packet) {
							m.Add(message.LocationPath, []byte("runs"))
							m.Add(message.LocationPath, []byte("7"))
						})
						return
					}
					a.says(q, codes.Content, states[0], option(message.ContentFormat, 50))
					states = states[1:]
				})
				defer a.end(client)
				var said []string
				var err error
				for r, e := range client.Thing(describe(t, "", taskTD)).Do(t.Context(), tt.m) {
					if err = e; e == nil {
						said = append(said, r.Status.String()+string(r.Data))
					}
				}
				if got := strings.Join(said, " "); got != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
				if tt.code != 0 {
					wantError(t, err, tt.code)
				} else if err != nil {
					t.Error(err)
				}
				for _, q := range a.asked()[1:] {
					if !strings.HasSuffix(q, " 0.01 /runs/7") {
						t.Errorf("received %s", q)
					}
				}
			})
		})
	}
}

// TestAbandonedTask is cancelled at the agent.
func TestAbandonedTask(t *testing.T) {
	t.Parallel()
	for _, leave := range []string{"loop", "deadline"} {
		synctest.Test(t, func(t *testing.T) {
			client, a := piped(t, func(a *agentPipe, q *messaging.Packet) {
				if q.Code == codes.POST {
					a.says(q, codes.Created, "", func(m *messaging.Packet) { m.Add(message.LocationPath, []byte("run")) })
					return
				}
				a.says(q, codes.Content, `{"state":"running"}`)
			})
			defer a.end(client)
			m := invoke("go", "")
			m.Deadline = time.Now().Add(10 * time.Second)
			for r, err := range client.Thing(describe(t, "", taskTD)).Do(t.Context(), m) {
				if leave == "loop" && r.Status == interact.StatusRunning {
					break
				}
				if err != nil {
					wantError(t, err, interact.Timeout)
				}
			}
			asked := a.asked()
			if last := asked[len(asked)-1]; last != "0 0.04 /run" {
				t.Errorf("%s: the last request of the agent is %s", leave, last)
			}
		})
	}
}
