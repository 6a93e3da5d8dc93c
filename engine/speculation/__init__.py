"""Draft models, which guess coming tokens for another model."""
