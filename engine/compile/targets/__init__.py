"""What differs by what runs a bundle: the CPU, an NPU with its context binaries, Genie, fused caches, encoders."""
