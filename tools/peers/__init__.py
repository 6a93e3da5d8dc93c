"""hexserve beside llama-server on one GGUF file: fidelity, tokens per second, first token, gaps and memory."""
