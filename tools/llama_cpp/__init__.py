"""llama.cpp's programs, built from the source tree that the real models bring along."""
