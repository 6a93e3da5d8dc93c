"""How near served GGUF files are to their own floats, beside what llama.cpp loses on the same files and tokens."""
