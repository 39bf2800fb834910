"""OpenTelemetry in: requests of OTLP over gRPC and HTTP, into tables of spans, logs and metrics."""
