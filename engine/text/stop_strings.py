"""Stop strings in a stream of text pieces, found across any borders, in time linear in the text.

Aho and Corasick, "Efficient string matching: an aid to bibliographic search", CACM 18(6), 1975.
"""

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Node:
    depth: int
    next: dict[str, int] = field(default_factory=dict)
    fallback: int = 0
    match: str | None = None  # longest stop that ends here


class StopMatcher:
    """The stop that is complete first wins; of several complete at the same character, the longest.

    Held back is only the longest end of the text that could still become a stop. `matched` is the stop once found;
    nothing may be pushed after that.
    """

    def __init__(self, stops: tuple[str, ...], include: bool = False) -> None:
        self._nodes = _automaton(tuple(stop for stop in stops if stop))
        self._first = frozenset(self._nodes[0].next)
        self._include = include
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str) -> str:
        """Text that may be given out after `piece`. On a match: all before the stop (and the stop, if included)."""
        assert self.matched is None, "the text has already ended"
        if self._state == 0 and self._first.isdisjoint(piece):
            return piece  # the usual case: nothing is held and nothing begins
        nodes, state = self._nodes, self._state
        for index, character in enumerate(piece):
            state = self._step(state, character)
            stop = nodes[state].match
            if stop is not None:
                self.matched = stop
                text = self._held + piece[: index + 1]
                self._held = ""
                return text if self._include else text[: len(text) - len(stop)]
        self._state = state
        text = self._held + piece
        certain = len(text) - nodes[state].depth
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """The end of the text: what was held back did not become a stop."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _step(self, state: int, character: str) -> int:
        nodes = self._nodes
        while True:
            target = nodes[state].next.get(character)
            if target is not None:
                return target
            if state == 0:
                return 0
            state = nodes[state].fallback


def _automaton(stops: tuple[str, ...]) -> list[_Node]:
    nodes = [_Node(0)]
    for stop in stops:
        state = 0
        for character in stop:
            if character not in nodes[state].next:
                nodes[state].next[character] = len(nodes)
                nodes.append(_Node(nodes[state].depth + 1))
            state = nodes[state].next[character]
        nodes[state].match = stop
    queue = deque(nodes[0].next.values())
    while queue:  # breadth first: a fallback is shorter, so it is already complete
        state = queue.popleft()
        node = nodes[state]
        for character, target in node.next.items():
            candidate = node.fallback
            while candidate and character not in nodes[candidate].next:
                candidate = nodes[candidate].fallback
            found = nodes[candidate].next.get(character, 0)
            nodes[target].fallback = found if found != target else 0
            nodes[target].match = nodes[target].match or nodes[nodes[target].fallback].match
            queue.append(target)
    return nodes
