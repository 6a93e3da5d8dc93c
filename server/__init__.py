"""HTTP in, server-sent events out. Knows the OpenAI format; knows nothing of graphs."""
