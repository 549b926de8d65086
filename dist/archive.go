package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"os"
)

// compressed returns data as gzip without name and time.
func compressed(data []byte) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	_, err = z.Write(data)
	err = errors.Join(err, z.Close())
	return b.Bytes(), err
}

// archive writes a tar.gz with the files in the folder name. They belong to root and have the date of the release.
func (r *release) archive(path, name string, files []file) error {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: name + "/" + f.archived, Mode: int64(f.mode), Size: int64(len(f.data)), ModTime: r.date, Format: tar.FormatUSTAR}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(f.data); err != nil {
			return err
		}
	}
	if err := t.Close(); err != nil {
		return err
	}
	z, err := compressed(b.Bytes())
	if err != nil {
		return err
	}
	return os.WriteFile(path, z, 0o644)
}
