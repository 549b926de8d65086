package login

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/interact"
)

// Without logins, the list is empty and logout fails. A target that is not the URL of an MCP server is a usage error. No case sends a
// request.
func TestCommands(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		command func(*cli.Console) *cobra.Command
		args    []string
		code    interact.Code // 0: no error
		prints  string
	}{
		"no logins":               {NewCommand, []string{}, 0, `"items":[]`}, // not nil: cobra would read the arguments of the process
		"a flag without a server": {NewCommand, []string{"--scope", "x"}, interact.Usage, ""},
		"a login at a program":    {NewCommand, []string{"mcp:exec:./server"}, interact.Usage, ""},
		"a logout at a program":   {NewLogoutCommand, []string{"exec:./server"}, interact.Usage, ""},
		"a logout without login":  {NewLogoutCommand, []string{"mcp:https://a.example/mcp"}, interact.NotFound, ""},
	} {
		var out, messages bytes.Buffer
		c := cli.New([]string{"HOME=" + t.TempDir()}, strings.NewReader(""), &out, &messages)
		c.Flags.DataDir, c.Flags.Output = t.TempDir(), "json"
		cmd := test.command(c)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(test.args)
		err := cmd.ExecuteContext(t.Context())
		if test.code == 0 && err != nil || test.code != 0 && (err == nil || interact.AsError(err).Code != test.code) {
			t.Errorf("%s: got %v", name, err)
		}
		if !strings.Contains(out.String(), test.prints) {
			t.Errorf("%s: printed %s", name, out.String())
		}
	}
}
