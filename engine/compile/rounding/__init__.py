"""How 4-bit codes and scales are chosen from calibration inputs, one file for each method; knows matrices alone."""
