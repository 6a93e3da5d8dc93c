"""`hexserve inspect`: a bundle drawn for a reader."""
