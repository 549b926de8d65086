package lazyregexp

import "testing"

func TestNew(t *testing.T) {
	t.Parallel()
	digits := New(`^[0-9]+$`)
	if first, second := digits(), digits(); first != second {
		t.Error("compiled twice")
	}
	if !digits().MatchString("12") || digits().MatchString("1a") {
		t.Error("another expression")
	}
	invalid := New(`(`) // no panic before its use
	defer func() {
		if recover() == nil {
			t.Error("an invalid expression compiles")
		}
	}()
	invalid()
}
