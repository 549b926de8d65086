// Package packet checks MQTT packets before a library reads them, and compares topics with filters.
package packet
