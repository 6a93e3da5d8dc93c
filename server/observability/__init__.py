"""What is counted and traced of a request: Prometheus metrics, OpenTelemetry spans; never what was said."""
