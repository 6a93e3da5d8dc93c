"""What a pass of a text encoder is made of, and what its rows become: inputs, pooling, scores. Arrays, no graphs."""
