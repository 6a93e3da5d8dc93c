"""The generated training text: one module per task family and a table of their weights."""
