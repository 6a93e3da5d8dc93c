"""Prompts that are given as rows of numbers in place of token ids: read, bounded, and laid into a pass."""
