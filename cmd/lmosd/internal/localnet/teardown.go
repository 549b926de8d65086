package localnet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/testnet"
)

func newTestnetLogs(b *bed) *cobra.Command {
	var lines int
	cmd := &cobra.Command{
		Use:   "logs [node]",
		Short: "print the end of the nodes' logs",
		Long:  `Prints the last lines of the logs, each after the number of its node.`,
		Example: `  lmosd testnet logs
  lmosd testnet logs 2 --lines 100`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly),
		Args:        cli.Takes(0, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := b.load()
			if err != nil {
				return err
			}
			nodes := s.Nodes
			if len(args) == 1 {
				n, err := b.pick(s, args[0])
				if err != nil {
					return err
				}
				nodes = []testnet.NodeState{*n}
			}
			for _, n := range nodes {
				if err := b.tail(n, lines); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().IntVar(&lines, "lines", 20, "number of lines of each node")
	return cmd
}

// tailMax is the number of bytes of a log that are read for its last lines.
const tailMax = 1 << 20

// tail prints the last lines of a node's log, each after the number of the node.
func (b *bed) tail(n testnet.NodeState, lines int) error {
	file, err := os.Open(n.Log)
	if err != nil {
		return err
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > tailMax {
		if _, err := file.Seek(-tailMax, io.SeekEnd); err != nil {
			return err
		}
	}
	content, err := io.ReadAll(io.LimitReader(file, tailMax))
	if err != nil {
		return err
	}
	all := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	for _, line := range all[max(0, len(all)-max(lines, 0)):] {
		b.Out.Line(b.Out.Paint(terminal.Dim, fmt.Sprintf("%d  ", n.N)) + readable(b.Out, line))
	}
	return nil
}

// readable returns a line of a node's log as `lmosd run` prints it on a terminal; other lines are unchanged.
func readable(s *terminal.Screen, line string) string {
	members, err := jcs.Members([]byte(line))
	if err != nil {
		return terminal.Printable(line)
	}
	var at time.Time
	var level slog.Level
	var message, after string
	for _, m := range members {
		switch m.Name {
		case slog.TimeKey:
			err = json.Unmarshal(m.Raw, &at)
		case slog.LevelKey:
			err = json.Unmarshal(m.Raw, &level)
		case slog.MessageKey:
			err = json.Unmarshal(m.Raw, &message)
		default:
			after += terminal.LogAttr(s, m.Name, textOf(m.Raw))
		}
		if err != nil {
			return terminal.Printable(line)
		}
	}
	return terminal.LogLine(s, at, level, message) + after
}

// textOf returns a JSON string as its text, other JSON as it is.
func textOf(raw []byte) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	return string(raw)
}

func newTestnetDown(b *bed) *cobra.Command {
	var purge bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "stop the testnet",
		Long:  `Stops every process of the testnet. Keys, stores and logs stay, so that "up" finds everything again; --purge removes them.`,
		Example: `  lmosd testnet down
  lmosd testnet down --purge`,
		Args: cli.Takes(0, 0),
		RunE: func(*cobra.Command, []string) error { return b.down(purge) },
	}
	cmd.Flags().BoolVar(&purge, "purge", false, "remove the data of the nodes, too, also of a testnet that is down already")
	return cmd
}

func (b *bed) down(purge bool) error {
	dir, err := b.folder()
	if err != nil {
		return err
	}
	start := time.Now()
	s, err := b.load()
	switch {
	case err == nil:
		if err := s.Down(); err != nil {
			return err
		}
		b.step(start, "%s stopped", terminal.Count(len(s.Nodes), "node", "nodes"))
	case !purge || interact.AsError(err).Code != interact.NotRunning:
		return err
	}
	if !purge {
		b.Next(b.line("up"), b.line("down --purge"))
		return nil
	}
	removed, err := purgeNet(dir)
	if err == nil {
		b.step(start, "data of %s removed", terminal.Count(removed, "node", "nodes"))
	}
	return err
}

// purgeNet removes the data of a testnet in its folder, and the folder if it is then empty. It returns the number of nodes.
func purgeNet(dir string) (nodes int, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch key := filepath.Join(path, "identity.pem"); {
		case e.Name() == weatherFile || e.Name() == weatherLog:
			err = errors.Join(err, os.Remove(path))
		case strings.HasPrefix(e.Name(), "node-") && exists(key):
			nodes++
			err = errors.Join(err, os.RemoveAll(path))
		}
	}
	_ = os.Remove(dir) // fails if the folder has other files
	return nodes, err
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
