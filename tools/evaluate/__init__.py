"""Bundles scored, timed and given tasks of lm-eval: `python -m tools.evaluate`."""
