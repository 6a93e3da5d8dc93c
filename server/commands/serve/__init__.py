"""`hexserve serve`: a model over HTTP."""
