// Package depsholder keeps modules in go.mod while their users are being written. It goes away.
package depsholder

import (
	_ "github.com/coder/websocket"
	_ "github.com/eclipse/paho.golang/autopaho"
	_ "github.com/eclipse/paho.golang/paho"
	_ "github.com/eclipse/paho.mqtt.golang"
	_ "github.com/getkin/kin-openapi/openapi3"
	_ "github.com/mochi-mqtt/server/v2"
	_ "github.com/mochi-mqtt/server/v2/hooks/auth"
	_ "github.com/mochi-mqtt/server/v2/listeners"
	_ "github.com/plgd-dev/go-coap/v3"
	_ "github.com/plgd-dev/go-coap/v3/dtls"
	_ "github.com/plgd-dev/go-coap/v3/tcp"
	_ "github.com/plgd-dev/go-coap/v3/udp"
	_ "go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	_ "go.opentelemetry.io/otel/sdk/trace"
)
