"""From logits to token ids, log-probabilities and forced tokens."""
