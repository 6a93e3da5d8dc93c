"""The embedded models: weights, cards, and the texts that they are calibrated and checked with."""
