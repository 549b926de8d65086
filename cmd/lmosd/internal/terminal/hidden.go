package terminal

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
)

// maxHidden limits the text of [ReadHidden], in bytes.
const maxHidden = 4096

// ReadHidden prints label to s, and reads one line from the terminal in, which does not show the text. The end of ctx ends the wait; the
// terminal shows its input again in any case. The error is io.EOF if the input ends without text.
func ReadHidden(ctx context.Context, in io.Reader, s *Screen, label string) (string, error) {
	f, ok := in.(*os.File)
	if !ok {
		return "", errors.New("the input is not a terminal")
	}
	show, err := hideInput(f)
	if err != nil {
		return "", err
	}
	s.Print(label)
	type result struct {
		text string
		err  error
	}
	read := make(chan result, 1)
	go func() { // it ends with a line, or with the process: a terminal read cannot be interrupted
		text, err := ReadLine(f, maxHidden)
		read <- result{text, err}
	}()
	var r result
	select {
	case r = <-read:
	case <-ctx.Done():
		r.err = ctx.Err()
	}
	s.Line("") // the terminal did not show the end of the line
	return r.text, errors.Join(r.err, show())
}

// ReadLine reads up to the end of a line of at most limit bytes, and no further, so that another call reads the next line. It returns the
// line without its end. The error is io.EOF if there is no line.
func ReadLine(r io.Reader, limit int) (string, error) {
	var line strings.Builder
	b := make([]byte, 1)
	for line.Len() <= limit {
		switch n, err := r.Read(b); {
		case n > 0 && b[0] == '\n':
			return strings.TrimSuffix(line.String(), "\r"), nil
		case n > 0:
			line.WriteByte(b[0])
		case errors.Is(err, io.EOF) && line.Len() > 0:
			return line.String(), nil
		case err != nil:
			return "", err
		}
	}
	return "", errors.New("the line is too long")
}
