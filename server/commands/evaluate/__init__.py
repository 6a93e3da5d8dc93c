"""`hexserve eval`: how well bundles predict a text."""
