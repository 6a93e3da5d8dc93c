"""A Dockerfile as stages of instructions. Enough of the format for ours: continuation lines, comments, no heredocs.

https://docs.docker.com/reference/dockerfile/
"""

import re
from dataclasses import dataclass, field


@dataclass
class Stage:
    base: str
    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, kind: str) -> list[str]:
        return [argument for each, argument in self.instructions if each == kind]

    def last(self, kind: str) -> str:
        return self.all(kind)[-1]


def read_dockerfile(text: str) -> list[Stage]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    stages: list[Stage] = []
    for line in filter(str.strip, joined.splitlines()):
        kind, _, argument = line.strip().partition(" ")
        argument = re.sub(r"\s+", " ", argument)
        if kind == "FROM":
            base, _, name = argument.partition(" AS ")
            stages.append(Stage(base, name))
        elif stages:
            stages[-1].instructions.append((kind, argument))
        else:
            assert kind == "ARG"
    return stages
