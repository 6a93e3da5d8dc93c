"""The demo model continued as a block-diffusion model: its training rows, training, decoding and evaluation."""
