// Package atomicfile replaces files as a whole.
package atomicfile
