"""Families of text encoders: a checkpoint's config as a `Network`, sentence-transformers' files as pooling."""
