"""What a name stands for: from what a user names to a bundle folder that is ready to serve."""
