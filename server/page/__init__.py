"""The chat page: its static files, and which of them are served under which path."""
