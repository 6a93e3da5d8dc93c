"""Book-keeping of cache columns. The runtime holds the bytes; nothing here touches an array."""
