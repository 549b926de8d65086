package td

import (
	"maps"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/td/schema"
)

// lintLanguages checks the translations of a TD (TD 1.1 §6.3.2): all maps should have the same languages (td-multi-languages-consistent);
// if there are maps, each text should have one (td-titles-descriptions); and a text equals its translation in the default language,
// "@language" of the context (td-title-description).
func (l *linter) lintLanguages() {
	w := &languageLinter{linter: l, main: defaultLanguage(l.doc), tags: map[string]string{}}
	w.walk("", l.doc)
	for _, pointer := range slices.Sorted(maps.Keys(w.tags)) {
		if set := w.tags[pointer]; set != w.first {
			l.warn(pointer, "has the languages %s, and %s has %s: they should be the same (td-multi-languages-consistent)", orNone(set),
				w.where, orNone(w.first))
		}
	}
	if len(w.tags) == 0 {
		return
	}
	for _, pointer := range w.untranslated {
		l.warn(pointer, "has one language; other texts of this TD have several (td-titles-descriptions)")
	}
}

// A languageLinter collects the languages of the texts of a TD.
type languageLinter struct {
	*linter
	main         string            // the default language; "" if there is none
	tags         map[string]string // languages of each map, by its pointer
	first, where string            // those of the first map, and its pointer
	untranslated []string          // pointers of texts without translations
}

// translations maps a text to the member with its translations.
var translations = map[string]string{"title": "titles", "description": "descriptions"}

// dataMembers are members with data instead of descriptions.
var dataMembers = map[string]bool{"const": true, "default": true, "enum": true, "proof": true, "registration": true, "@context": true}

// walk checks the texts of the object or array v and of its parts, in the order of their names.
func (w *languageLinter) walk(pointer string, v any) {
	for i, e := range array(v) {
		w.walk(pointer+schema.Pointer(i), e)
	}
	m := object(v)
	for _, name := range sortedKeys(m) {
		switch _, isText := m[name].(string); {
		case dataMembers[name] || strings.Contains(name, ":"):
		case isText && translations[name] != "":
			w.compare(pointer, m, name)
		case !isText:
			w.walk(pointer+schema.Pointer(name), m[name])
		}
	}
}

// compare compares a text with its translations.
func (w *languageLinter) compare(pointer string, m map[string]any, name string) {
	all, ok := m[translations[name]].(map[string]any)
	if !ok {
		w.untranslated = append(w.untranslated, pointer+schema.Pointer(name))
		return
	}
	here := pointer + schema.Pointer(translations[name])
	tags := slices.Sorted(maps.Keys(all))
	if w.tags[here] = strings.Join(tags, ", "); w.where == "" {
		w.where, w.first = here, w.tags[here]
	}
	for _, tag := range tags {
		if strings.EqualFold(tag, w.main) && all[tag] != m[name] {
			w.warn(pointer+schema.Pointer(name), "is %s, and %s is %s in the default language %s (td-title-description)",
				schema.Show(m[name]), here, schema.Show(all[tag]), tag)
		}
	}
}

// defaultLanguage returns the language of the context (TD 1.1 §5.3.1.1, @context).
func defaultLanguage(doc map[string]any) (tag string) {
	for _, c := range contexts(doc) {
		if language, ok := object(c)["@language"].(string); ok {
			tag = language
		}
	}
	return tag
}

func orNone(languages string) string {
	if languages == "" {
		return "none"
	}
	return languages
}
