package directory

import (
	"github.com/lmosd/lmosd/directory/lookalike"
	"github.com/lmosd/lmosd/td"
)

// shownName returns the display name of a record's Thing.
func shownName(r *td.Record) string {
	return td.NameKey((&td.Thing{Title: r.Title, ID: r.Thing}).Name())
}

// countNameLocked counts a live e for its name, and no longer for the name of was, which may be nil. The new name is counted first, so that
// an unchanged name keeps its age. The names of restricted Things are not counted: the name that another one looks like is shown to all callers.
func (d *Directory) countNameLocked(e *entry, was *td.Record, own, kept bool) {
	name, c := shownName(e.view.record), d.classOf(e.view.record, own)
	counted, class := e.nameCounted && was != nil, e.nameClass
	if e.view.record.Audience != td.Public {
		if e.nameCounted = false; counted {
			d.lookalikes.Remove(shownName(was), class)
		}
		return
	}
	if counted && class == c && shownName(was) == name {
		return
	}
	e.nameCounted, e.nameClass = d.lookalikes.Add(name, c, kept), c
	if counted {
		d.lookalikes.Remove(shownName(was), class)
	}
}

// uncountNameLocked no longer counts e for its name.
func (d *Directory) uncountNameLocked(e *entry) {
	if e.nameCounted {
		d.lookalikes.Remove(shownName(e.view.record), e.nameClass)
		e.nameCounted = false
	}
}

// classOf returns the class of a Thing of an owner.
func (d *Directory) classOf(r *td.Record, own bool) lookalike.Class {
	if own {
		return lookalike.Own
	}
	if d.opts.Trust != nil {
		if amount, _ := TrustIn(r, d.opts.Trust); amount > 0.5 {
			return lookalike.Trusted
		}
	}
	return lookalike.Other
}

// Resembles returns the name that the name of a Thing looks like: of this node, of a trusted owner, or older; empty if there is none.
func (d *Directory) Resembles(r *td.Record) string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.lookalikes.Original(shownName(r))
}
