"""Bodies of the routes under /api into what the chat route's functions take."""
