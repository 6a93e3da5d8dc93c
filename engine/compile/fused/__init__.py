"""Compiling fused prefill/decode graphs: a prompt's rows over its cache and decodes over theirs, in one graph."""
