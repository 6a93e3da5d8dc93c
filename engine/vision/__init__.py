"""Images on their way into a prompt: decoded in a process of their own, cut into tiles, named in the text."""
