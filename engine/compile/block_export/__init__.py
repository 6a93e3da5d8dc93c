"""Exports a block-diffusion graph: one block of rows, the whole cache and the masks in, logits and the cache out."""
