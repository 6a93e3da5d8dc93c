"""Fused prefill/decode graphs: which row goes where, their inputs, caches of their own for sequences, the runtime."""
