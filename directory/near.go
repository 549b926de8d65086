package directory

import "strings"

// maxNear bounds the names that are compared to find a near one: a wrong name must not cost much, whoever sends it.
const maxNear = 20_000

// near returns the known name that is most like name, or "" if none is like it: at most a third of its letters differ,
// and at most three, in the whole name or in one of its words.
func (d *Directory) near(name string) string {
	want := []rune(nameKey(name))
	most := min(len(want)/3, 3)
	if most == 0 || len(want) > 100 {
		return ""
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	best, bestAt, looked := "", most+1, 0
	for known := range d.index.lists[byName] {
		if looked++; looked > maxNear {
			break
		}
		if at := nearness(want, known, most); at < bestAt || at == bestAt && best != "" && known < best {
			best, bestAt = known, at
		}
	}
	return best
}

// nearness returns the least distance of want to a name or one of its words, or something above most.
func nearness(want []rune, name string, most int) int {
	least := distance(want, []rune(name), most)
	for word := range strings.SplitSeq(name, "-") {
		if len(word) < len(name) {
			least = min(least, distance(want, []rune(word), most))
		}
	}
	return least
}

// distance returns how many letters must be added, removed, replaced or swapped with their neighbour to make b of a, or
// most+1 if more than most.
func distance(a, b []rune, most int) int {
	if len(a)-len(b) > most || len(b)-len(a) > most {
		return most + 1
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range a {
		row[0] = i + 1
		least := row[0]
		for j := range b {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
			least = min(least, row[j+1])
		}
		if least > most {
			return most + 1
		}
		before, last, row = last, row, before
	}
	return min(last[len(b)], most+1)
}
