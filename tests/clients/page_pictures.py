"""The pictures of the page in docs/how-to/. `python -m tests.clients.page_pictures docs/how-to` draws them again.

The first is demo-vision, asked about a drawn scene. The answers in the second are those of the scripted model, which
says what it is told. The third is the demo model in graphs of fixed shapes, which four others ask too.
"""

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from random import Random

import httpx

from tests.clients.environments import run_client
from tests.clients.servers import ROOT, Servers
from tests.live import LiveServer, serving
from tools.demo_vision.scenes import draw_scene

NAMES = ("page-light.png", "page-dark.png", "page-steps.png")
SHAPES = 38  # the seed of a scene with a square, a triangle and a circle
OTHERS = 4
ANIMALS = ("fox", "bear", "bird", "cat", "mouse", "fish", "owl")


def draw(folder: Path, servers: Servers, work: Path) -> None:
    """Write the three pictures into `folder`; RuntimeError with all that was said when that fails."""
    bundle = work / "fixed"
    words = ["compile", "demo", "--rows", "1,8,32", "--context", "256,1024", "--output", str(bundle)]
    subprocess.run([sys.executable, "-m", "server", *words], cwd=ROOT, check=True, capture_output=True)
    with serving("--bundle", str(bundle), "--model-name", "demo", "--lookup-rows", "3") as live, asked(live):
        scene = work / "scene.png"
        draw_scene(Random(SHAPES)).image.save(scene)
        places = {"STEPS_URL": f"{live.url}/v1", "SCREENSHOTS": str(folder), "SCENE": str(scene)}
        variables = {**servers.variables(("thinks", "sees")), **places}
        done = run_client("page", variables, "screenshots.py")
    if done.code:
        raise RuntimeError(f"{done.output}\n{done.errors}")


@contextmanager
def asked(live: LiveServer) -> Iterator[None]:
    """Others who ask for stories all the while."""
    is_over = threading.Event()
    threads = [threading.Thread(target=_ask, args=(live.url, number, is_over)) for number in range(OTHERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def _ask(url: str, number: int, is_over: threading.Event) -> None:
    with httpx.Client(base_url=url, timeout=60) as client:
        for animal in cycle(ANIMALS[number:] + ANIMALS[:number]):
            if is_over.is_set():
                return
            asked_for = [{"role": "user", "content": f"Tell me a short story about a {animal}."}]
            for _ in range(2):  # the second one has much in common with the first: guesses find it
                body = {"model": "demo", "messages": asked_for, "max_tokens": 100}
                said = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
                asked_for += [{"role": "assistant", "content": said}, asked_for[0]]


def main(folder: str) -> int:
    """Draw into a folder; the exit code."""
    with tempfile.TemporaryDirectory() as work:
        servers = Servers(Path(work))
        try:
            draw(Path(folder).resolve(), servers, Path(work))
        finally:
            servers.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
