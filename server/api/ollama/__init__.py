"""Ollama's API: the routes under /api."""
