"""Changes of a checkpoint's weights that leave its function as it is: rotations and factors of channels."""
