"""The process that owns the graphs: it receives requests, runs one step after the other, and replies."""
