"""How 4-bit codes and scales are chosen from calibration inputs; knows matrices alone."""
