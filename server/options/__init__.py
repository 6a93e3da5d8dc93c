"""What a setting is: its help and its bounds; groups of settings that have a file of their own."""
