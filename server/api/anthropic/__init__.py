"""Anthropic's API: /v1/messages and their form of the list of models."""
