"""How matrices are stored and multiplied; `table.py` lists the methods. Knows no network."""
