package node
import ("testing";"fmt";"time")
func TestZZ(t *testing.T) {
	o := quiet(); o.Dir = t.TempDir()
	n, err := New(o); if err != nil { t.Fatal(err) }
	s := time.Now()
	for i := range 1000 { if _, _, err := n.offers.publish(t.Context(), tool("Tool", fmt.Sprintf("urn:x:%d", i)), nil); err != nil { t.Fatal(err) } }
	t.Log("publish", time.Since(s))
	n.Close()
	s = time.Now()
	n, err = New(o); if err != nil { t.Fatal(err) }
	t.Log("open", time.Since(s))
	n.Close()
}
