// Package yamltext parses YAML files of limited size and depth.
//
// The YAML library recurses without a limit, and panics on some invalid texts. A file must never stop the program without a message.
package yamltext

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// MaxFile limits a file, in bytes.
const MaxFile = 256 << 10

// maxDepth limits the nesting of a file, and with it the stack of the parser. The files of lmosd have four levels.
const maxDepth = 64

// Parse parses the syntax of a file. The error may be a [yaml.Error], which has a position; see [Position].
func Parse(source []byte) (file *ast.File, err error) {
	if err := check(source); err != nil {
		return nil, err
	}
	defer recovered(&err)
	return parser.ParseBytes(source, 0)
}

// Unmarshal decodes a file into v, which must be a pointer. Unknown members are errors.
func Unmarshal(source []byte, v any) (err error) {
	if err := check(source); err != nil {
		return err
	}
	defer recovered(&err)
	return yaml.UnmarshalWithOptions(source, v, yaml.Strict())
}

// Decode decodes a part of a file into v, as [Unmarshal] does.
func Decode(n ast.Node, v any) (err error) {
	defer recovered(&err)
	return yaml.NodeToValue(n, v, yaml.Strict())
}

// Position returns the message of an error of this package, in one line, and its line and column from 1; 0 if they are unknown.
func Position(err error) (message string, line, column int) {
	message = err.Error()
	var y yaml.Error
	if errors.As(err, &y) {
		message = y.GetMessage()
		if t := y.GetToken(); t != nil && t.Position != nil {
			line, column = t.Position.Line, t.Position.Column
		}
	}
	message, _, _ = strings.Cut(message, "\n")
	return message, line, column
}

func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("invalid YAML (%v)", p)
	}
}

func check(source []byte) error {
	if len(source) > MaxFile {
		return fmt.Errorf("the file has %d bytes, the limit is %d", len(source), MaxFile)
	}
	if nesting(source) > maxDepth {
		return fmt.Errorf("the file is nested deeper than %d levels", maxDepth)
	}
	return nil
}

// nesting returns an upper bound of the depth of the YAML in b: opening brackets, indentation, and dashes or question marks of one line.
func nesting(b []byte) int {
	brackets, deepest := 0, 0
	for line := range strings.Lines(string(b)) {
		rest := strings.TrimLeft(line, " \t-?:")
		deepest = max(deepest, len(line)-len(rest))
		brackets += strings.Count(line, "[") + strings.Count(line, "{")
		deepest = max(deepest, brackets)
		brackets = max(0, brackets-strings.Count(line, "]")-strings.Count(line, "}"))
	}
	return deepest
}
