"""A worker that follows a script: real messages over real pipes, tokens that can be computed by hand, death on demand.

Run as `python scripted_worker.py <script as JSON>`. `starts` says how each start goes, the last entry forever:
"ready", "exit" (at once), "hang" (never ready), "fatal" (for good), "unwell" (not), "mute" (ready, then reads nothing),
"stop" (ready, then stopped).
`folder` counts the starts. A request's prompt is bytes; words in it direct what happens to it:

die@k      the worker kills itself instead of giving token k (SIGKILL; os.abort where there is none)
garbage@k  it writes bytes that are no frame instead of token k
fail@k     Failed instead of token k;  invalid@k the same as the caller's fault
hold@k     no token k during the first start
many@k     `k` tokens per event
stop@k     the worker stops (SIGSTOP) instead of giving token k
stuck@k    its loop never returns instead of giving token k; pings are answered

Before a worker hangs it says so in the file `hung.<its pid>` of the folder.
"""

import json
import os
import queue
import re
import signal
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from engine.messages import (
    Abort,
    Command,
    Failed,
    Fatal,
    Heartbeat,
    Ping,
    Ready,
    Report,
    Shutdown,
    Stats,
    StepRecord,
    Submit,
    Tokens,
    Watch,
    frame,
    read_command,
)
from engine.request import FinishReason, Request, RequestTimings, TokenEvent, TokenLogprob

DIRECTION = re.compile(rb"(die|garbage|fail|invalid|hold|many|stop|stuck)@(\d+)")


def expected_token(prompt: tuple[int, ...], index: int) -> int:
    """Token `index` of the completion: a lower-case letter that depends on the whole prompt and the position."""
    return ord("a") + (sum(prompt) + 7 * index + index * index) % 26


def expected_text(prompt: tuple[int, ...], count: int) -> str:
    """The first `count` tokens as text."""
    return "".join(chr(expected_token(prompt, index)) for index in range(count))


@dataclass
class Sequence:
    """One request under way."""

    request: Request
    made: int
    directions: dict[str, int] = field(default_factory=dict)


class ScriptedWorker:
    """One token (or `many`) per request and step, until max_tokens."""

    def __init__(self, start: int, folder: Path) -> None:
        self.start = start
        self.folder = folder
        self.sequences: dict[str, Sequence] = {}
        self.steps = 0
        self.generated = 0
        self.is_watched = False

    def obey(self, command: Command) -> None:
        if isinstance(command, Submit):
            found = {
                name.decode(): int(k)
                for name, k in DIRECTION.findall(bytes(i % 256 for i in command.request.prompt_ids))
            }
            self.sequences[command.request.id] = Sequence(command.request, len(command.emitted), found)
        elif isinstance(command, Abort):
            self.sequences.pop(command.id, None)
        elif isinstance(command, Watch):
            self.is_watched = command.is_on

    def step(self) -> bool:
        """One step; False when nothing moved."""
        events = [event for sequence in list(self.sequences.values()) if (event := self._advance(sequence))]
        if events:
            self.steps += 1
            self.generated += sum(len(event.token_ids) for event in events)
            send(Tokens(tuple(events), Stats(steps=self.steps, generated_tokens=self.generated, running=len(events))))
            if self.is_watched:
                send(StepRecord(self.steps, 0.0, 1.0, 2.0, 8, 64, (), len(self.sequences), 0, 0, 64))
        return bool(events)

    def _advance(self, sequence: Sequence) -> TokenEvent | None:
        request, directions = sequence.request, sequence.directions
        if directions.get("die") == sequence.made:
            kill_self()
        if directions.get("garbage") == sequence.made:
            sys.stdout.buffer.write(b"\xff" * 64)
            sys.stdout.buffer.flush()
            threading.Event().wait()
        if directions.get("stop") == sequence.made:
            stop_self(self.folder)
        if directions.get("stuck") == sequence.made:
            (self.folder / f"hung.{os.getpid()}").touch()
            threading.Event().wait()
        if directions.get("hold") == sequence.made and self.start == 1:
            return None
        for word in ("fail", "invalid"):
            if directions.get(word) == sequence.made:
                del self.sequences[request.id]
                send(Failed(request.id, f"told to {word}", "engine" if word == "fail" else word))
                return None
        count = min(directions.get("many", 1), request.params.max_tokens - sequence.made)
        tokens = tuple(expected_token(request.prompt_ids, sequence.made + i) for i in range(count))
        sequence.made += count
        is_last = sequence.made >= request.params.max_tokens
        stops = set(tokens) & set(request.params.stop_token_ids)
        if stops:
            tokens = tokens[: min(tokens.index(stop) for stop in stops) + 1]
        if is_last or stops:
            del self.sequences[request.id]
        return TokenEvent(
            request.id,
            tokens,
            tuple(TokenLogprob(i, -0.5, ((i, -0.5), (195, -3.0))) for i in tokens) if request.params.logprobs else (),
            (FinishReason.STOP if stops else FinishReason.LENGTH) if is_last or stops else None,
            tokens[-1] if stops else None,
            RequestTimings(1.0, 10.0, 100.0, len(request.prompt_ids), 0, sequence.made) if is_last or stops else None,
        )


WRITING = threading.Lock()


def send(report: Report) -> None:
    """Write one report; the parent may be gone."""
    try:
        with WRITING:
            sys.stdout.buffer.write(frame(report))
            sys.stdout.buffer.flush()
    except OSError:
        os._exit(0)


def stop_self(folder: Path) -> None:
    """Hang altogether, as a worker does that somebody stopped."""
    (folder / f"hung.{os.getpid()}").touch()
    os.kill(os.getpid(), signal.SIGSTOP)


def kill_self() -> None:
    """Die as a native crash would: no handlers, no last words."""
    if hasattr(signal, "SIGKILL"):
        os.kill(os.getpid(), signal.SIGKILL)
    os.abort()


def receive(inbox: "queue.SimpleQueue[Command | None]", worker: ScriptedWorker) -> None:
    """Thread: commands until end of input, then the end of the process, whatever the other thread does."""
    while True:
        command = read_command(sys.stdin.buffer)
        if command is None or isinstance(command, Shutdown):
            os._exit(0)
        if isinstance(command, Ping):
            send(Heartbeat(bool(worker.sequences), worker.steps, 1.0))
        else:
            inbox.put(command)


def main() -> None:
    """Follow the script."""
    script = json.loads(sys.argv[1])
    folder = Path(script["folder"])
    counter = folder / "starts"
    start = len(counter.read_text().split()) + 1 if counter.exists() else 1
    with counter.open("a") as stream:
        stream.write(f"{os.getpid()}\n")
    how = script["starts"][min(start, len(script["starts"])) - 1]
    inbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
    worker = ScriptedWorker(start, folder)
    if how == "exit":
        sys.exit(7)
    if how == "mute":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        threading.Thread(target=receive, args=(inbox, worker), daemon=True).start()
    if how == "fatal":
        send(Fatal("the bundle is broken", permanent=True))
        os._exit(3)
    if how == "unwell":
        send(Fatal("graph ar1_cl64 failed", permanent=False))
        os._exit(3)
    if how == "hang":
        (folder / f"hung.{os.getpid()}").touch()
        threading.Event().wait()
    send(Ready("tiny", "scripted", 4096, ("free",)))
    if how == "mute":
        threading.Event().wait()
    if how == "stop":
        stop_self(folder)
    while True:
        moved = worker.step()
        while not moved or not inbox.empty():
            worker.obey(inbox.get() or Shutdown())
            moved = True


if __name__ == "__main__":
    main()
