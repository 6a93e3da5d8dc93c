"""Other software's four bits of the same checkpoints, scored by the same command."""
RIVALS: tuple[str, ...] = ()
EQUAL_BITS: dict[str, tuple[str, ...]] = {}
class Rivals:
    def __init__(self, *a): pass
