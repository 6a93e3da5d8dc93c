"""Tokens to text and back, in the server process only: the worker never loads this package."""
