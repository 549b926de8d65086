package nat

import (
	"os"
	"strings"
	"testing"
)

func TestTry(t *testing.T) {
	o := Options{Binary: "/tmp/nat-lmosd", Dir: t.TempDir(), Jobs: 2}
	for _, p := range Matrix(Transport(os.Getenv("TRY"))) {
		o.Pairs = append(o.Pairs, p)
	}
	o.OnStep = func(r Step) { t.Logf("%+v", r) }
	o.Scenarios = strings.Fields(os.Getenv("SC"))
	o.OnResult = func(r Result) { t.Logf("%+v", r) }
	r, err := Run(t.Context(), o)
	t.Log(r, err)
}
