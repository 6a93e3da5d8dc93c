"""Stored responses: their states, the SQLite database of them, and those that are being generated."""
