"""How matrices are stored and multiplied, one file for each method; `table.py` lists them. Knows no network."""
