"""Texts that a compilation observes a model on: built-in ones or a file of the user's, as sequences of tokens."""
