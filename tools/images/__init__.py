"""Encoders of images at their published sizes beside transformers."""
