"""How a sequence turns logits into tokens."""
