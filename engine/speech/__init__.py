"""Sound and its transcript outside the worker: decoding, cutting, spectra, decisions, segments, words."""
