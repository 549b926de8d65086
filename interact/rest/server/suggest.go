package server

import "strings"

// similar returns at most three names of have that are similar to name: one contains the other, or at most a third of the bytes differ.
// The case is ignored.
func similar(name string, have []string) []string {
	if len(name) > 256 {
		return nil
	}
	var found []string
	low := strings.ToLower(name)
	for _, h := range have {
		other := strings.ToLower(h)
		within := min(len(low), len(other)) > 2 && (strings.Contains(other, low) || strings.Contains(low, other))
		if len(found) < 3 && (within || distance(low, other) <= max(len(low), len(other))/3) {
			found = append(found, h)
		}
	}
	return found
}

// distance is the number of single-byte edits between a and b (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
