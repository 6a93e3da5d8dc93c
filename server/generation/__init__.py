"""What all formats share: from a checked body to the engine's streams, and from tokens to text and calls."""
