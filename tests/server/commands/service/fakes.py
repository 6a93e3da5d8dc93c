"""Tools on the PATH that write down how they are called and answer as they are told."""

import os
import sys
from pathlib import Path

PROGRAM = """\
#!{python} -IS
import json, os, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
record = dict(tool=name, words=words)
if "/XML" in words:
    record["xml"] = open(words[words.index("/XML") + 1], encoding="utf-16").read()
with open({calls!r}, "a") as file:
    file.write(json.dumps(record) + "\\n")
with open({answers!r}) as file:
    answers = json.load(file)
code, output, errors = next((a for k, a in answers.items() if k in " ".join([name, *words])), (0, "", ""))
print(output, end="")
print(errors, end="", file=sys.stderr)
sys.exit(code)
"""


class FakeTools:
    """A folder of them. `answers`: what to answer to a call that contains the key: status, output, errors."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder / "bin"
        self.folder.mkdir()
        self._calls, self._answers = folder / "calls", folder / "answers.json"
        self._calls.write_text("")
        self.answer({})
        values = {"python": sys.executable, "calls": str(self._calls), "answers": str(self._answers)}
        for name in names:
            tool = self.folder / name
            tool.write_text(PROGRAM.format(**values))
            tool.chmod(0o755)

    def answer(self, answers: dict[str, tuple[int, str, str]]) -> None:
        """From now on."""
        import json

        self._answers.write_text(json.dumps(answers))

    def calls(self) -> list[str]:
        """Each call as one line, and forget them."""
        return [" ".join([record["tool"], *record["words"]]) for record in self.records()]

    def records(self) -> list[dict[str, object]]:
        """Each call with what it read."""
        import json

        lines = self._calls.read_text().splitlines()
        self._calls.write_text("")
        return [json.loads(line) for line in lines]

    @property
    def path(self) -> str:
        """The PATH that has nothing else."""
        return str(self.folder) + os.pathsep
