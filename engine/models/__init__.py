"""Model families: a checkpoint's config.json as a `Network`. Knows nothing of graphs or weights' bytes."""
