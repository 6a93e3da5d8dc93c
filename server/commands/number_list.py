"""Lists of whole numbers on a command line."""


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """'1,4,8' -> (1, 4, 8). Raises ValueError naming the option."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{option} must be whole numbers with commas between, not '{text}'") from None
    if min(found) < 1:
        raise ValueError(f"{option} must be at least 1 each, not '{text}'")
    return found
