"""The embedded demo model: its corpus, vocabulary, network, training and evaluation."""
