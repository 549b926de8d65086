// Package render formats the documents of the API as lines, tables and sheets.
package render
