package pubsub

import (
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/td"
)

// fakeHost is a host that only has an id.
type fakeHost struct{ host.Host }

func (fakeHost) ID() peer.ID { return "self" }

func TestTopics(t *testing.T) {
	t.Parallel()
	if got := topicName("acme", 10); got != "/lmos/acme/adv/0a" {
		t.Errorf("got %s", got)
	}
	if got := protocolID("acme"); got != "/lmos/acme/meshsub/1.3.0" {
		t.Errorf("got %s", got)
	}
	re := topicsOf("a.me")
	for _, c := range []struct {
		topic string
		want  bool
	}{
		{"/lmos/a.me/adv/00", true},
		{"/lmos/a.me/adv/0f", true},
		{"/lmos/a.me/org/telekom", true},
		{"/lmos/a.me/revocations/1", true},
		{"/lmos/a.me/group/Qm123", true},
		{"/lmos/a.me/adv/10", false},
		{"/lmos/acme/adv/00", false},
		{"/lmos/a.me/adv/00/x", false},
		{"x/lmos/a.me/adv/00", false},
		{"/lmos/a.me/org/" + strings.Repeat("x", 33), false},
		{"", false},
	} {
		if got := re.MatchString(c.topic); got != c.want {
			t.Errorf("%s: got %v, want %v", c.topic, got, c.want)
		}
	}
	for i := range Shards {
		if name := topicName("a.me", byte(i)); !re.MatchString(name) {
			t.Errorf("own topic %s does not pass", name)
		}
	}
}

func TestShardsOf(t *testing.T) {
	t.Parallel()
	one, other := td.Shard("a"), td.Shard("b")
	for _, c := range []struct {
		name string
		r    td.Record
		want shards
	}{
		{"two capabilities", td.Record{Capabilities: []string{"a:x", "b"}}, 1<<one | 1<<other},
		{"one family", td.Record{Capabilities: []string{"a:x", "a:y"}}, 1 << one},
		{"no capability", td.Record{Thing: "urn:a:1"}, 1 << td.Shard("urn:a:1")},
		{"tombstone", td.Record{Thing: "urn:a:1", Kind: td.KindTombstone}, everywhere},
		{"moved, with capabilities", td.Record{Kind: td.KindMoved, Capabilities: []string{"b"}}, 1 << other},
	} {
		if got := shardsOf(&c.r); got != c.want {
			t.Errorf("%s: got %016b, want %016b", c.name, got, c.want)
		}
	}
}

// The table of design degrees: 5 is the default, 4 is that of a lean node.
func TestMeshOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ d, lo, hi, score, out int }{{5, 4, 7, 3, 1}, {4, 3, 6, 2, 1}} {
		m := meshOf(c.d)
		if m.D != c.d || m.Dlo != c.lo || m.Dhi != c.hi || m.Dscore != c.score || m.Dout != c.out {
			t.Errorf("degree %d: got %d %d %d %d", c.d, m.Dlo, m.Dhi, m.Dscore, m.Dout)
		}
	}
	for d := 3; d <= 24; d++ {
		if m := meshOf(d); m.Dout >= m.Dlo || m.Dout >= m.D/2 || m.Dscore > m.Dhi {
			t.Errorf("degree %d: gossipsub would reject %d %d %d", d, m.Dlo, m.Dout, m.Dscore)
		}
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		o    Options
		want string
	}{
		{"no network", Options{}, "Network is required"},
		{"degree too low", Options{Network: "main", Degree: 2}, "degree 2"},
		{"degree too high", Options{Network: "main", Degree: 25}, "degree 25"},
		{"no such shard", Options{Network: "main", Shards: []byte{16}}, "shard 16"},
	} {
		if err := c.o.complete(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q in it", c.name, err, c.want)
		}
	}
	o := Options{Network: "main"}
	if err := o.complete(); err != nil || o.Degree != 5 || len(o.Shards) != Shards {
		t.Errorf("got %+v, %v", o, err)
	}
}
