package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/internal/testprogram"
)

// completed are words that a shell completes, with the words that it must offer. Names of agents need an answer within [completeTime].
var completed = []struct {
	line   string // to its end
	offers []string
}{
	{"lmosd fi", []string{"find"}},
	{"lmosd find --capab", []string{"--capability"}},
	{"lmosd help exit", []string{"exit-codes"}},
	{"lmosd org root ro", []string{"rotate"}},
	{"lmosd show weather@", []string{"weather@z6Mk"}},
	{"lmosd call weather getW", []string{"getWeather"}},
	{"lmosd read weather un", []string{"units"}},
	{"lmosd completion z", []string{"zsh"}},
}

// shellOffers runs a script of a shell until all words are offered, and fails if they are not.
func shellOffers(t *testing.T, line string, offers []string, command func() *exec.Cmd) {
	t.Helper()
	var out, talk bytes.Buffer
	eventually(t, fmt.Sprintf("%q offers %v", line, offers), func() bool {
		out.Reset()
		talk.Reset()
		cmd := command()
		cmd.Stdout, cmd.Stderr = &out, &talk
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s%s", err, out.String(), talk.String())
		}
		return !slices.ContainsFunc(offers, func(word string) bool { return !strings.Contains("\n"+out.String(), "\n"+word) })
	})
	if strings.Contains(talk.String(), "not found") {
		t.Errorf("%q: %s", line, talk.String())
	}
}

// bash without the package bash-completion.
func TestCompletionInBash(t *testing.T) {
	t.Parallel()
	bash, env := testprogram.Path(t, "bash"), append(home(t, withToken(newFakeNode(t))...), "PATH="+os.Getenv("PATH"))
	// The arguments are the words of a line, as bash splits them.
	const script = `source <(lmosd completion bash)
if declare -F _init_completion _get_comp_words_by_ref; then echo "bash-completion is there"; exit 1; fi
compopt() { :; }
COMP_LINE=$1; shift
COMP_POINT=${#COMP_LINE} COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_TYPE=9 COLUMNS=80
__start_lmosd
printf '%s\n' "${COMPREPLY[@]}"`
	run := func(line string, words, offers []string) {
		t.Helper()
		shellOffers(t, line, offers, func() *exec.Cmd {
			cmd := exec.Command(bash, append([]string{"--norc", "--noprofile", "-c", script, "bash", line}, words...)...)
			cmd.Env = env
			return cmd
		})
	}
	for _, test := range completed {
		run(test.line, strings.Split(test.line, " "), test.offers)
	}
	// bash splits at "=" and ":", and replaces only the last part.
	run("lmosd find -o=js", []string{"lmosd", "find", "-o", "=", "js"}, nil)
	run("lmosd show ", []string{"lmosd", "show", ""}, []string{"weather@z6Mk"})
	run("lmosd show urn:example:wea", []string{"lmosd", "show", "urn", ":", "example", ":", "wea"}, nil)
}

func TestCompletionInFish(t *testing.T) {
	t.Parallel()
	fish, env := testprogram.Path(t, "fish"), append(home(t, withToken(newFakeNode(t))...), "PATH="+os.Getenv("PATH"))
	for _, test := range completed {
		shellOffers(t, test.line, test.offers, func() *exec.Cmd {
			cmd := exec.Command(fish, "--no-config", "-c", "lmosd completion fish | source; complete -C '"+test.line+"'")
			cmd.Env = env
			return cmd
		})
	}
}

// zsh completes only on a terminal: zpty is one.
func TestCompletionInZsh(t *testing.T) {
	t.Parallel()
	zsh, env := testprogram.Path(t, "zsh"), append(home(t, withToken(newFakeNode(t))...), "PATH="+os.Getenv("PATH"), "TERM=xterm")
	// The completion system of zsh, whose matches are printed in place of a menu.
	const script = `zmodload zsh/zpty
zpty z zsh -f -i
tap() { zpty -w z "$1"; }
tap 'PS1= PROMPT= ; unsetopt prompt_cr prompt_sp; autoload -U compinit; compinit -u -D; source <(lmosd completion zsh)'
tap 'compadd() { local -a found; builtin compadd -O found "$@" 2>/dev/null; builtin compadd "$@"; (($#found)) && print -rl -- "" "OFFER:"${^found} >> $HOME/offers; return 0 }'
tap 'bindkey "^I" complete-word; zle -C complete-word complete-word _main_complete; print RE''ADY'
while zpty -r z out; do [[ $out == *READY* ]] && break; done
zpty -w -n z "$LINE"$'\t'
sleep 0.1
zpty -w -n z $'\C-u'
tap 'print DO''NE'
while zpty -r z out; do [[ $out == *DONE* ]] && break; done
sed -n 's/^OFFER://p' $HOME/offers
rm -f $HOME/offers`
	for _, test := range completed {
		shellOffers(t, test.line, test.offers, func() *exec.Cmd {
			cmd := exec.Command(zsh, "-f", "-c", script)
			cmd.Env = append(slices.Clip(env), "LINE="+test.line)
			return cmd
		})
	}
}

// PowerShell is not a package of Debian: the brackets and the quotes of its script are checked, not its behavior.
func TestCompletionScriptOfPowerShell(t *testing.T) {
	t.Parallel()
	r := lmosd(t.Context(), home(t), "", "completion", "powershell")
	contains(t, r.out, "Register-ArgumentCompleter -CommandName 'lmosd'", "__complete")
	var open []rune
	quote := rune(0)
	for line := range strings.Lines(r.out) {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		escaped := false
		for _, c := range line {
			switch {
			case escaped:
				escaped = false
			case c == '`':
				escaped = true
			case quote != 0:
				if c == quote {
					quote = 0
				}
			case c == '\'' || c == '"':
				quote = c
			case strings.ContainsRune("([{", c):
				open = append(open, c)
			case strings.ContainsRune(")]}", c):
				want := map[rune]rune{')': '(', ']': '[', '}': '{'}[c]
				if len(open) == 0 || open[len(open)-1] != want {
					t.Fatalf("%c closes nothing: %s", c, line)
				}
				open = open[:len(open)-1]
			}
		}
	}
	if r.code != 0 || len(open) > 0 || quote != 0 {
		t.Errorf("exit code %d, open %q, quote %q", r.code, string(open), quote)
	}
}

// A script in the folder of a shell is what the shell reads.
func TestCompletionFoldersAreThoseOfTheExamples(t *testing.T) {
	t.Parallel()
	fish, dir := testprogram.Path(t, "fish"), t.TempDir()
	folder := filepath.Join(dir, ".config", "fish", "completions")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	script := lmosd(t.Context(), home(t), "", "completion", "fish").out
	if err := os.WriteFile(filepath.Join(folder, "lmosd.fish"), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(fish, "-c", "complete -C 'lmosd fi'")
	cmd.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "find") {
		t.Errorf("%v\n%s", err, out)
	}
}
