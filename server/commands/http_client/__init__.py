"""The HTTP client that bench and chat share: addresses, keys, the first model, streamed answers."""
