"""Texts that a compilation observes a model on, the float forward pass, and what is measured of activations."""
