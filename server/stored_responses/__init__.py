"""Stored responses: their states, and the SQLite database of them."""
