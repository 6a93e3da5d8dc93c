"""Images that a request names instead of bringing them along."""
