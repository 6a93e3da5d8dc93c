"""What the engine made, in Ollama's format."""
