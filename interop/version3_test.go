package interop

import (
	"errors"
	"strings"
	"testing"

	paho3 "github.com/eclipse/paho.mqtt.golang"
	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interop/testmesh"
)

// only3 rejects the CONNECT of MQTT 5 as brokers of 3.1.1 do: with the return code "unacceptable protocol version" (MQTT 3.1.1 §3.2.2.3).
type only3 struct{ mochi.HookBase }

func (*only3) ID() string           { return "only 3.1.1" }
func (*only3) Provides(b byte) bool { return b == mochi.OnPacketRead }

func (*only3) OnPacketRead(cl *mochi.Client, pk packets.Packet) (packets.Packet, error) {
	if pk.FixedHeader.Type == packets.Connect && pk.ProtocolVersion == 5 {
		_, _ = cl.Net.Conn.Write([]byte{0x20, 2, 0, 1}) // then the connection ends
		cl.Stop(errors.New("no MQTT 5 here"))
	}
	return pk, nil
}

const oldTD = `{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "Old", "base": "mqtt://ADDRESS",
	"securityDefinitions": {"n": {"scheme": "nosec"}}, "security": "n",
	"properties": {"level": {"type": "integer", "observable": true, "forms": [
		{"href": "mqtt://ADDRESS", "op": ["readproperty", "observeproperty"], "mqv:filter": "old/level", "mqv:retain": true, "mqv:qos": "1"},
		{"href": "mqtt://ADDRESS", "op": "writeproperty", "mqv:topic": "old/level/set", "mqv:qos": "1"}]}},
	"actions": {
		"ring": {"synchronous": true, "input": {"type": "string"}, "forms": [{"href": "mqtt://ADDRESS", "mqv:topic": "old/ring", "mqv:qos": 1}]},
		"ask": {"synchronous": true, "output": {"type": "string"}, "forms": [{"href": "mqtt://ADDRESS/old/ask"}]}},
	"events": {"alarm": {"data": {"type": "string"}, "forms": [{"href": "mqtt://ADDRESS", "op": "subscribeevent", "mqv:filter": "old/alarm",
		"mqv:qos": "1"}]}}}`

// An agent of MQTT 3.1.1, behind a broker of only that, is called from another node with all operations that need no response.
func TestAgentOfMQTT3(t *testing.T) {
	t.Parallel()
	m := testmesh.Start(t)
	address := startBroker(t, &only3{})
	came := make(chan paho3.Message, 100)
	client := paho3.NewClient(paho3.NewClientOptions().AddBroker("tcp://" + address).SetProtocolVersion(4).SetClientID("old").
		SetAutoReconnect(false).SetOrderMatters(true).SetDefaultPublishHandler(func(_ paho3.Client, p paho3.Message) { came <- p }))
	done := func(token paho3.Token) {
		t.Helper()
		if !token.WaitTimeout(stepTimeout) || token.Error() != nil {
			t.Fatalf("MQTT 3.1.1: %v", token.Error())
		}
	}
	done(client.Connect())
	t.Cleanup(func() { client.Disconnect(100) })
	done(client.SubscribeMultiple(map[string]byte{"old/level/set": 1, "old/ring": 1}, nil))
	m.Offer(t, []byte(strings.ReplaceAll(oldTD, "ADDRESS", address)), nil)
	m.Known(t, "old")
	h := newHTTPTalk(m, "old")
	defer h.client.CloseIdleConnections()
	x := h.consumer(t, h.ask)

	heard := func(topic, want string) {
		t.Helper()
		p, err := next(t.Context(), came)
		if err != nil || p.Topic() != topic || string(p.Payload()) != want {
			t.Errorf("the agent receives %v, %v; want %s on %s", p, err, want, topic)
		}
	}
	if err := walk(step{x, interact.WriteProperty, "level", "41", ""}, step{x, interact.InvokeAction, "ring", `"fire"`, ""}); err != nil {
		t.Fatal(err)
	}
	heard("old/level/set", "41")
	heard("old/ring", `"fire"`)
	done(client.Publish("old/level", 1, true, "42"))
	if err := walk(step{x, interact.ReadProperty, "level", "", "42"}); err != nil {
		t.Error(err)
	}
	n := 42
	tell := func() error {
		n++
		done(client.Publish("old/level", 1, true, string(asJSON(n))))
		done(client.Publish("old/alarm", 1, false, `"smoke"`))
		return nil
	}
	beside := openGo(t, m, "old")
	if _, err := hear(beside, &interact.Message{Type: interact.ObserveProperty, Name: "level"}, tell, ""); err != nil {
		t.Error(err)
	}
	if _, err := hear(beside, &interact.Message{Type: interact.SubscribeEvent, Name: "alarm"}, tell, `"smoke"`); err != nil {
		t.Error(err)
	}
	if _, err := send(x, query(interact.InvokeAction, "ask", "")); !coded(err, interact.NotAllowed) || !strings.Contains(err.Error(), "MQTT 5") {
		t.Errorf("what needs an answer gives %v", err)
	}
}
