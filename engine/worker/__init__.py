"""The process that owns the graphs: it receives requests, runs one pass after the other, and replies."""
