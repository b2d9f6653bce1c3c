"""Takes in what log shippers already send: OTLP, Loki push, Elasticsearch bulk and plain lines."""
