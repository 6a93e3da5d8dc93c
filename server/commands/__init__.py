"""The verbs of `hexserve`, one file or folder each, and what they share."""
