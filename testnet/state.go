package testnet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/atomicfile"
)

// stateFile is the name of the file that describes a testnet of processes, in its directory.
const stateFile = "testnet.json"

// State is the content of testnet.json.
type State struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"` // Testnet
	Network    string      `json:"network"`
	Seed       int64       `json:"seed"`
	Topology   string      `json:"topology"`
	Dir        string      `json:"dir"`
	Nodes      []NodeState `json:"nodes"`
	Agents     []Proc      `json:"agents,omitempty"`
}

// NodeState is one node in testnet.json.
type NodeState struct {
	N       int      `json:"n"`
	DID     did.DID  `json:"did"`
	API     string   `json:"api"`
	P2P     []string `json:"p2p"`
	Socket  string   `json:"socket"`
	PID     int      `json:"pid"`
	DataDir string   `json:"data_dir"`
	Log     string   `json:"log"`
	// Born is the start time of the process, to detect a reused process id.
	Born string `json:"born,omitempty"`
}

// Proc is another process of the testnet, for example an agent.
type Proc struct {
	Name string `json:"name"`
	PID  int    `json:"pid"`
	Born string `json:"born,omitempty"`
	URL  string `json:"url,omitempty"`
}

// Save writes the state of t into dir, atomically.
func (t *Net) Save(dir, topology string, agents []Proc) (*State, error) {
	s := &State{APIVersion: api.APIVersion, Kind: "Testnet", Network: t.Network, Seed: t.Seed, Topology: topology, Dir: dir, Agents: agents}
	for _, m := range t.Members {
		s.Nodes = append(s.Nodes, NodeState{N: m.N, DID: m.DID, API: m.API, P2P: m.Addrs, Socket: m.Socket, PID: m.PID,
			DataDir: m.DataDir, Log: m.Log, Born: Born(m.PID)})
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, err
	}
	return s, atomicfile.Write(filepath.Join(dir, stateFile), append(b, '\n'), 0o600)
}

// Load reads the state of the testnet in dir. The error wraps fs.ErrNotExist if there is none.
func Load(dir string) (*State, error) {
	b, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, err
	}
	var s State
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, stateFile), err)
	}
	return &s, nil
}

// Down ends all processes of the testnet, agents first, and removes its state file.
func (s *State) Down() error {
	var errs []error
	for _, a := range s.Agents {
		errs = append(errs, end(a.PID, a.Born))
	}
	for _, n := range s.Nodes {
		errs = append(errs, end(n.PID, n.Born))
	}
	if err := os.Remove(filepath.Join(s.Dir, stateFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Born returns the start time of a process in clock ticks, or "" if there is no such process or the system does not report it
// (proc_pid_stat(5), field 22).
func Born(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, after, ok := strings.Cut(string(b), ") ") // The name in parentheses may hold spaces.
	fields := strings.Fields(after)
	if !ok || len(fields) < 20 || fields[0] == "Z" {
		return ""
	}
	return fields[19]
}

// Alive reports whether the process pid that started at born still runs.
func Alive(pid int, born string) bool {
	if pid <= 0 || kill(pid, 0) != nil {
		return false
	}
	return born == "" || Born(pid) == born
}

// end ends a process, and kills it after stopFor. It ignores another process with the same id.
func end(pid int, born string) error {
	if !Alive(pid, born) {
		return nil
	}
	if err := kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop process %d: %w", pid, err)
	}
	for deadline := time.Now().Add(stopFor); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if !Alive(pid, born) {
			return nil
		}
	}
	return errors.Join(fmt.Errorf("process %d did not end within %v and was killed", pid, stopFor), kill(pid, syscall.SIGKILL))
}

// Purge removes the data of the nodes: keys, stores and logs. It keeps other files in the folder.
func (s *State) Purge() error {
	var errs []error
	for _, n := range s.Nodes {
		if filepath.Dir(n.DataDir) == s.Dir {
			errs = append(errs, os.RemoveAll(n.DataDir))
		}
	}
	return errors.Join(errs...)
}
