"""Ask a server about scenes that no training drew: `python -m tools.demo_vision.exam --url http://127.0.0.1:8000`.

An answer is right when it is the one answer of the question, letter by letter.
"""

import argparse
import base64
import io
from collections import Counter
from random import Random

import httpx
from rich.console import Console
from rich.progress import track

from tools.demo_vision.scenes import Scene, SceneQuestion, draw_scene, questions

KINDS = ("description", "count", "colour", "shape", "presence", "writing", "number", "word")
MODEL = "demo-vision"
MOST_TOKENS = 60


def held_out(number: int) -> tuple[Scene, SceneQuestion]:
    """One scene and a question about it: a kind after the other."""
    rng, wanted = Random(f"vision-exam-{number}"), KINDS[number % len(KINDS)]
    while True:
        scene = draw_scene(rng)
        for question in questions(scene, rng):
            if question.kind == wanted:
                return scene, question


def asked(url: str, scene: Scene, question: SceneQuestion) -> str:
    """What the server answers."""
    file = io.BytesIO()
    scene.image.save(file, "PNG")
    picture = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": question.text}]
    messages = [{"role": "user", "content": content}]
    body = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": MOST_TOKENS}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120).raise_for_status()
    return str(answer.json()["choices"][0]["message"]["content"])


def examine(url: str, count: int) -> dict[str, float]:
    """The share of right answers of each kind, of so many questions in all."""
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for number in track(range(count), description="exam"):
        scene, question = held_out(number)
        total[question.kind] += 1
        right[question.kind] += asked(url, scene, question) == question.answer
    return {kind: right[kind] / total[kind] for kind in total}


def main() -> None:
    """Print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--count", type=int, default=400)
    options = parser.parse_args()
    shares = examine(options.url.rstrip("/"), options.count)
    for kind, share in shares.items():
        Console().print(f"{kind:12} {share:.1%}", highlight=False)
    Console().print(f"{'all':12} {sum(shares.values()) / len(shares):.1%}", highlight=False)


if __name__ == "__main__":
    main()
