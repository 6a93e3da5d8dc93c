"""How well bundles predict a text: perplexity, and how near they are to a float model, with confidence intervals."""
