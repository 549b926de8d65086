package main

import (
	"strings"
	"testing"
)

// With --capability, the shell completes the actions of all agents that provide it, each once, then files.
func TestCompleteCallByCapability(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	x = x.at(x.node("n"))
	for name, action := range map[string]string{"one": "forecast", "two": "forecast", "three": "warn"} {
		p := x.exposed(x.script(name+".sh", sunny), "--name", name, "--capability", "urn:x:weather", "--action", action)
		p.prints("until this command ends")
	}
	x.exposed(x.script("other.sh", sunny), "--name", "other", "--capability", "urn:x:other", "--action", "else").prints("until this command ends")
	for args, want := range map[string]string{
		"--capability urn:x:weather":               "forecast\nwarn\n:4\n",
		"--capability urn:x:weather --trust any":   "forecast\nwarn\n:4\n",
		"--capability urn:x:none":                  ":4\n",
		"--capability urn:x:weather@x":             ":4\n",
		"--capability urn:x:weather --trust enemy": ":4\n",
		"--capability urn:x:weather forecast":      ":0\n",
		"one":                                      "forecast\n:4\n",
	} {
		line := append(append([]string{"__complete", "call"}, strings.Fields(args)...), "")
		// A slow machine gives no names in the time of a completion.
		eventually(t, "after "+args+" the shell gets "+want, func() bool { return x.ok(line...) == want })
	}
}
