"""Training of the embedded models: corpus, vocabulary, network, exams. `python -m tools.demo_model.train --help`."""
