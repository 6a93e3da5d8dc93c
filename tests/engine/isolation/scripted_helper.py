"""A helper that does what the question says: `hang`, `stop`, `die`, `loop`, or an answer. Notes its starts in a file.

`X once` does X in the first process only. Its opening is answered by itself; `refuse` and `die` may be openings.
"""

import os
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from engine.isolation.framing import HelperFrames, ending_after


def obey(word: str, folder: Path) -> None:
    match word:
        case "hang":
            (folder / "hanging").touch()
            threading.Event().wait()
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "die":
            os._exit(1)
        case "loop":
            with ending_after(0.05):
                threading.Event().wait()


def main() -> None:
    folder = Path(sys.argv[1])
    with (folder / "starts").open("a") as stream:
        stream.write(f"{os.getpid()}\n")
    is_first = len((folder / "starts").read_text().split()) == 1
    frames = HelperFrames()
    frames.write(b"")
    while (body := frames.read()) is not None:
        word, _, once = body.decode().partition(" ")
        if is_first or not once:
            obey(word, folder)
        frames.write(body)


if __name__ == "__main__":
    main()
