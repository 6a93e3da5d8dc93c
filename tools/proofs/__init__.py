"""Proofs on real machines: the image, a Ray cluster, a Snapdragon laptop, Qualcomm's Genie on the same binaries."""
