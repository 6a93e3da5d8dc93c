"""The embedded model that reads images: drawn scenes, its training and its exam. Needs the extra `dev`."""
