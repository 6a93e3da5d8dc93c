"""The host's side of an exported block-diffusion graph: what it is, its masks, its cache and the loop that runs it."""
