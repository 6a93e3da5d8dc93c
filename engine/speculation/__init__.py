"""Guesses of coming tokens: how often they were right, what they are worth, and how many of them a pass takes."""
