package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/theory/jsonpath"
)

// plainTDD is the baseline of a directory: it checks that a TD is JSON, writes it to a file of its own, with one sync, and keeps it in memory. It has
// no signatures, schema, index, events or access control.
type plainTDD struct {
	dir    string
	mu     sync.RWMutex
	things map[string]plainThing // by id
}

type plainThing struct {
	raw   []byte
	value any
}

// servePlainTDD runs the server with a directory of its own. It prints its URL.
func servePlainTDD(ctx context.Context, dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	d := &plainTDD{dir: dir, things: map[string]plainThing{}}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /things/{id}", d.put)
	mux.HandleFunc("DELETE /things/{id}", d.remove)
	mux.HandleFunc("GET /things", d.list)
	mux.HandleFunc("GET /search/jsonpath", d.search)
	return serveHTTP(ctx, func(string) http.Handler { return mux })
}

func (d *plainTDD) file(id string) string {
	return filepath.Join(d.dir, strings.NewReplacer("/", "_", ":", "_").Replace(id))
}

func (d *plainTDD) put(w http.ResponseWriter, r *http.Request) {
	id, t := r.PathValue("id"), plainThing{}
	var err error
	if t.raw, err = io.ReadAll(r.Body); err == nil {
		err = json.Unmarshal(t.raw, &t.value)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := writeSynced(d.file(id), t.raw); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	d.mu.Lock()
	_, known := d.things[id]
	d.things[id] = t
	d.mu.Unlock()
	if known {
		w.WriteHeader(http.StatusNoContent)
	} else {
		w.WriteHeader(http.StatusCreated)
	}
}

func writeSynced(file string, b []byte) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return cmp.Or(err, f.Sync(), f.Close())
}

func (d *plainTDD) remove(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if err := os.Remove(d.file(id)); err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	d.mu.Lock()
	delete(d.things, id)
	d.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

// sorted returns all Things by id.
func (d *plainTDD) sorted() (all []plainThing) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, id := range slices.Sorted(maps.Keys(d.things)) {
		all = append(all, d.things[id])
	}
	return all
}

func (d *plainTDD) list(w http.ResponseWriter, _ *http.Request) {
	var b bytes.Buffer
	for i, t := range d.sorted() {
		b.WriteByte("[,"[min(i, 1)])
		b.Write(t.raw)
	}
	b.WriteByte(']')
	w.Header().Set("Content-Type", "application/ld+json")
	_, _ = w.Write(b.Bytes())
}

func (d *plainTDD) search(w http.ResponseWriter, r *http.Request) {
	path, err := jsonpath.Parse(r.FormValue("query"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var values []any
	for _, t := range d.sorted() {
		values = append(values, t.value)
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(path.Select(values)); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
