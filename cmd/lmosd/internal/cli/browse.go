package cli

import (
	"os/exec"
	"runtime"
)

// HasBrowser reports whether a browser may be opened on this machine: there is a display.
func (c *Console) HasBrowser() bool {
	return runtime.GOOS == "darwin" || runtime.GOOS == "windows" || c.Variable("DISPLAY") != "" || c.Variable("WAYLAND_DISPLAY") != ""
}

// Browse opens an address or a file in a browser, which outlives this command. It returns false, after a note, without one. All users of this machine
// can read the address in the list of processes.
func (c *Console) Browse(address string) bool {
	name, args := "xdg-open", []string{address}
	switch runtime.GOOS {
	case "darwin":
		name = "open"
	case "windows":
		name, args = "rundll32", []string{"url.dll,FileProtocolHandler", address}
	}
	cmd := exec.Command(name, args...)
	if err := cmd.Start(); err != nil {
		c.Note("no browser: %v", err)
		return false
	}
	_ = cmd.Process.Release()
	return true
}
