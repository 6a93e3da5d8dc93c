"""OpenTelemetry: a trace of each request that is posted, who waited where and never what was said."""
