"""The engine's deltas as Anthropic's messages and events."""
