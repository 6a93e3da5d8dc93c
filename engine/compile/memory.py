"""How much memory a compilation took."""

import sys

KIB = 1024


def peak_memory() -> tuple[int, int]:
    """Most resident bytes so far of this process, and of the largest one it has waited for; 0 where unknown."""
    if sys.platform == "win32":
        return 0, 0
    import resource  # noqa: PLC0415 (there is none on Windows)

    unit = 1 if sys.platform == "darwin" else KIB
    own, child = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own * unit, child * unit


def peak_text(own: int, child: int) -> str:
    """A line for the end of a compilation; empty where nothing is known. Processes beside it count from 0.1 GB."""
    if not own:
        return ""
    beside = f", its largest process beside it {child / 1e9:.1f} GB" if child >= 1e8 else ""
    return f"peak memory {own / 1e9:.1f} GB{beside}"
