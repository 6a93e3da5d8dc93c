"""Computed pages of prompts in a file, by which a prefix cache outlives its process. No array and no scheduler here."""
