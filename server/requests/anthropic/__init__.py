"""Bodies of Anthropic's format as what the chat route's functions take."""
