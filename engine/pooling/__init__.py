"""Texts that become vectors or scores: their tokens before the pass, and what is made of the numbers behind it."""
