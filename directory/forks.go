package directory

import (
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// A Fork is equivocation: two different records of one thing with one seq, which its owner must never sign. Most likely two
// programs use one key.
type Fork struct {
	Owner did.DID
	Thing string
	Seq   uint64
	Seen  time.Time // when the second one came
	// Records are the two, verified, without TDs inside: evidence that anybody can check. The first is the one that counts, on
	// every node.
	Records [2][]byte
}

// Bounds of the evidence.
const (
	maxForks      = 256 // the eldest goes
	forksPerOwner = 8   // so that one owner cannot push out the others'; later ones are only counted
)

// forks remembers equivocation, the eldest first, one of each thing. It is plain data: its owner locks.
type forks []Fork

func (fs *forks) add(f Fork) {
	*fs = slices.DeleteFunc(*fs, func(o Fork) bool { return o.Owner == f.Owner && o.Thing == f.Thing })
	of := 0
	for _, o := range *fs {
		if o.Owner == f.Owner {
			of++
		}
	}
	if of >= forksPerOwner {
		return
	}
	if *fs = append(*fs, f); len(*fs) > maxForks {
		*fs = slices.Delete(*fs, 0, 1)
	}
}

// Forks returns the equivocation that was seen since [New], the eldest first: the last of each thing, at most 8 of an owner and
// 256 in all. The caller must not change the records.
func (d *Directory) Forks() []Fork {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Clone(d.forks)
}

// forkLocked decides between two different records of one seq. The error is RolledBack if the known one stays. Which one stays is
// the same on every node.
func (d *Directory) forkLocked(e *entry, cur, r *td.Record) error {
	d.count.forks.Add(1)
	stays := cur.Compare(r) >= 0
	f := Fork{Owner: r.Owner, Thing: r.Thing, Seq: r.Seq, Seen: time.Now(), Records: [2][]byte{r.Bare(), cur.Bare()}}
	if stays {
		f.Records = [2][]byte{cur.Bare(), r.Bare()}
	}
	d.forks.add(f)
	if !e.fork { // once: who makes forks could fill the log with them
		e.fork = true
		d.log.Warn("equivocation: two records with one seq", "owner", r.Owner, "thing", r.Thing, "seq", r.Seq, "stays", stays)
	}
	if stays {
		return d.rolledBackLocked(e, r, "another record with the same seq came; two programs may use one key")
	}
	return nil
}
