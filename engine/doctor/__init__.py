"""`hexserve doctor`: what this machine can run, and what stands in the way."""
