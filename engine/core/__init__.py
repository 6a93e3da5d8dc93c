"""Decisions of every step, pure: sequences, blocks of the KV cache, which rows share a step, what they came to."""
