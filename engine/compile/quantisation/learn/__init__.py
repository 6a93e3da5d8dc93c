"""Rounding and scales that gradients improve: a layer at a time, then the whole model; needs torch, an extra."""
