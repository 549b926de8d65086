package tdd

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"

	"github.com/lmosd/lmosd/internal/jcs"
)

// merge applies a merge patch to a value (RFC 7396 §2). It changes target if that is an object, and keeps references to parts of patch.
func merge(target, patch any) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	object, ok := target.(map[string]any)
	if !ok {
		object = map[string]any{}
	}
	for name, value := range changes {
		if value == nil {
			delete(object, name)
		} else {
			object[name] = merge(object[name], value)
		}
	}
	return object
}

// mergeTD applies a patch to the text of an object. Members that the patch does not name keep their text and order; new ones follow, sorted
// by name.
func mergeTD(raw []byte, patch map[string]any) ([]byte, error) {
	members, err := jcs.Members(raw)
	if err != nil {
		return nil, err
	}
	left := maps.Clone(patch)
	var out []jcs.Member
	for _, m := range members {
		change, named := left[m.Name]
		delete(left, m.Name)
		switch {
		case !named:
			out = append(out, m)
		case change != nil:
			old, err := jcs.Decode(m.Raw, len(m.Raw))
			if err != nil {
				return nil, err
			}
			if out, err = appendMember(out, m.Name, merge(old, change)); err != nil {
				return nil, err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(left)) {
		if left[name] == nil {
			continue
		}
		if out, err = appendMember(out, name, merge(nil, left[name])); err != nil {
			return nil, err
		}
	}
	return jcs.Join(out), nil
}

func appendMember(to []jcs.Member, name string, value any) ([]jcs.Member, error) {
	raw, err := jcs.Append(nil, value)
	return append(to, jcs.Member{Name: name, Raw: raw}), err
}

// diff returns the merge patch from object a to b. A null in b counts as a missing member (RFC 7396 §1); TDs have none.
func diff(a, b map[string]any) map[string]any {
	patch := map[string]any{}
	for name := range a {
		if _, stays := b[name]; !stays {
			patch[name] = nil
		}
	}
	for name, now := range b {
		was, there := a[name]
		if there && reflect.DeepEqual(was, now) {
			continue
		}
		before, isObject := was.(map[string]any)
		after, staysObject := now.(map[string]any)
		if isObject && staysObject {
			patch[name] = diff(before, after)
		} else {
			patch[name] = now
		}
	}
	return patch
}

// diffTD returns the merge patch between two TDs, with the id (tdd-notification-data-update-id).
func diffTD(before, after []byte, id string) ([]byte, error) {
	a, err := jcs.Object(before, len(before))
	if err != nil {
		return nil, err
	}
	b, err := jcs.Object(after, len(after))
	if err != nil {
		return nil, err
	}
	patch := diff(a, b)
	patch["id"] = id
	return jcs.Append(nil, patch)
}

// onlyID returns event data with only an id.
func onlyID(id string) []byte {
	b, _ := json.Marshal(struct { // strings always encode
		ID string `json:"id"`
	}{id})
	return b
}
