"""`--quality good`: codes and scales of 4-bit matrices chosen layer by layer, on the inputs that text gives them."""
