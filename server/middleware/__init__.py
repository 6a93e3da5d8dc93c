"""Layers around all routes: access log, Host and origins, API keys, rate limits."""
