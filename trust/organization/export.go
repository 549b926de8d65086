package organization

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/lmosd/lmosd/internal/atomicfile"
)

// Export writes the public files of the organization to a folder, for a web server that serves it as https://DOMAIN/.well-known: did.jsonl,
// did.json, and on an issuer its status list. The folder is created, and existing files are replaced. Files have mode 0644.
func (o *Organization) Export(dir string) error {
	files := map[string][]byte{"did.jsonl": o.Log().Bytes()}
	doc, err := o.Document()
	if err != nil {
		return err
	}
	files["did.json"] = doc
	l, err := o.List(false)
	switch {
	case err == nil:
		files[listFolder+path.Base(l.ID)] = l.Raw
	case !errors.Is(err, ErrNotIssuer):
		return err
	}
	for name, data := range files {
		full := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			return err
		}
		if err := atomicfile.Write(full, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// ListPath returns the path of the own status list on the web server of the domain, "/.well-known/lmosd/status/i1.json", or "" if this node
// is not an issuer.
func (o *Organization) ListPath() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, rest, _ := strings.Cut(strings.TrimPrefix(o.listID(), "https://"), "/")
	if rest == "" {
		return ""
	}
	return "/" + rest
}
