package jcs

import (
	"bytes"
	"encoding/json"
)

// Join writes members as one JSON object, in their order, each value as it is: what [Members] took apart.
func Join(members []Member) []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range members {
		if i > 0 {
			b.WriteByte(',')
		}
		name, _ := json.Marshal(m.Name) // a string always has a JSON form
		b.Write(name)
		b.WriteByte(':')
		b.Write(m.Raw)
	}
	b.WriteByte('}')
	return b.Bytes()
}
