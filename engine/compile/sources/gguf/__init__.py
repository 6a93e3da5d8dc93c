"""GGUF files as a source: a header read within bounds, tensors, facts of the network, tokenizer and template."""
