"""`hexserve doctor`: what this machine can run, told and written down."""
