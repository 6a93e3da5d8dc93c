"""A bar made of characters."""

EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(value: float, highest: float, cells: int, is_plain: bool = False) -> str:
    """A bar of at most `cells` characters, in eighths of one unless `is_plain`."""
    eighths = round(8 * cells * value / highest) if highest > 0 else 0
    if is_plain:
        return "#" * (eighths // 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
