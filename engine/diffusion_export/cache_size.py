"""How much memory a preallocated cache takes."""


def kv_cache_bytes(layers: int, kv_heads: int, columns: int, head_dim: int, item_bytes: int, batch: int = 1) -> int:
    """Bytes of a cache [layers, 2, batch, kv_heads, columns, head_dim]: keys and values of every column."""
    return layers * 2 * batch * kv_heads * columns * head_dim * item_bytes
