"""The verbs of `hexserve`, and what they share: `command.py` declares options and imports the rest when it runs."""
