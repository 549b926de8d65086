package telemetry

import (
	"log/slog"
	"net/url"
	"strings"
)

// An environment is the configuration of a collector in environment variables.
type environment struct {
	headers map[string]string
	gzip    bool
}

// readEnv reads the supported variables (OpenTelemetry "Protocol Exporter"); those of traces take precedence. An invalid header is ignored
// and logged.
func readEnv(getenv func(string) string, log *slog.Logger) environment {
	lookup := func(name string) string {
		if s := strings.TrimSpace(getenv("OTEL_EXPORTER_OTLP_TRACES_" + name)); s != "" {
			return s
		}
		return strings.TrimSpace(getenv("OTEL_EXPORTER_OTLP_" + name))
	}
	env := environment{headers: map[string]string{}, gzip: lookup("COMPRESSION") == "gzip"}
	for i, pair := range strings.Split(lookup("HEADERS"), ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		name = strings.TrimSpace(name)
		value, err := url.PathUnescape(value)
		if value = strings.TrimSpace(value); !ok || err != nil || !validHeader(name, value) {
			// Neither name nor value is logged, because each may be secret.
			log.Warn("header ignored", "variable", "OTEL_EXPORTER_OTLP_HEADERS", "number", i+1, "want", "name=value, percent-encoded")
			continue
		}
		env.headers[name] = value
	}
	return env
}

// validHeader reports whether HTTP permits a header (RFC 9110 §5.1, §5.5).
func validHeader(name, value string) bool {
	token := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	}
	control := func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }
	return name != "" && strings.IndexFunc(name, func(r rune) bool { return !token(r) }) < 0 && strings.IndexFunc(value, control) < 0
}
