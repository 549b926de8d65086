package localnet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/examples/weather/agent"
	"github.com/lmosd/lmosd/testnet"
)

// NewWeatherCommand returns the weather agent of examples/weather as a command, for demo and testnet. It does not use lmosd.
func NewWeatherCommand() *cobra.Command {
	return &cobra.Command{
		Use: "weather-agent", Hidden: true, DisableFlagParsing: true,
		Short:   "run the weather agent of the examples",
		Long:    "Runs the agent of examples/weather.",
		Example: "  lmosd weather-agent -listen 127.0.0.1:0 -td weather.td.json\n  lmosd weather-agent -h",
		RunE: func(cmd *cobra.Command, args []string) error {
			return agent.Main(cmd.Context(), args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
}

// Files of the weather agent in its folder.
const (
	weatherFile = "weather.td.json"
	weatherLog  = "weather.log"
)

// A weather is a running weather agent.
type weather struct {
	cmd  *exec.Cmd
	gone chan struct{}
	td   []byte
}

// startWeather runs the weather agent and waits for its Thing Description in dir.
func startWeather(ctx context.Context, dir string) (*weather, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, weatherFile)
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(dir, weatherLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	w := &weather{cmd: exec.Command(binary, "weather-agent", "-listen", "127.0.0.1:0", "-td", file), gone: make(chan struct{})}
	w.cmd.Stdout, w.cmd.Stderr = log, log
	testnet.Detach(w.cmd)
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(w.gone)
		_ = w.cmd.Wait() // the log has the reason
	}()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = testnet.Until(ctx, "the weather agent serves (see "+log.Name()+")", func() bool {
		w.td, err = os.ReadFile(file)
		return err == nil
	})
	if err != nil {
		return nil, errors.Join(err, w.stop())
	}
	return w, nil
}

func (w *weather) stop() error {
	select {
	case <-w.gone:
		return nil
	default:
	}
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-w.gone:
		return nil
	case <-time.After(5 * time.Second):
		return errors.Join(fmt.Errorf("the weather agent did not end and was killed"), w.cmd.Process.Kill())
	}
}

func (w *weather) proc() testnet.Proc {
	return testnet.Proc{Name: "weather", PID: w.cmd.Process.Pid, Born: testnet.Born(w.cmd.Process.Pid)}
}
