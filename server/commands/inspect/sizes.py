"""Bytes in words."""


def size_text(count: float) -> str:
    """Bytes as a reader says them: '312 B', '1.5 KB', '684.2 MB'."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")
