"""What Ray Serve in front of hexserve does, on a local cluster of three nodes, with figures.

    python -m tools.proofs.ray_proof [--python PYTHON_OF_HEXSERVE]

First the share of prompt tokens that replicas found cached, with Ray's prefix-aware router and with its usual one. Then
24 streams, under which one replica is killed with its server: every text must be what it is without that. Prints one
JSON line at the end; exit code 1 when a text was lost or changed.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")  # the machine may be busy
# Serve ends a proxy that is slow, with all its connections.
os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "300")
os.environ.setdefault("RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S", "300")
# Else Ray leaves loopback for the address of the machine.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")

import psutil
import ray
from openai import AsyncOpenAI
from ray import serve
from ray.cluster_utils import Cluster

from deploy.ray_serve import Options, build

NODES, STREAMS, TOKENS = 3, 24, 96
NODE = {"num_cpus": 2, "resources": {"hexserve": 1}, "node_ip_address": "127.0.0.1"}
NODE |= {"object_store_memory": 80_000_000, "include_dashboard": False}
GROUPS, ASKED = 9, 5  # conversations with a system text of their own, and requests of each
WORDS = (
    *("amber", "birch", "cedar", "delta", "ember", "frost", "grove", "heron"),
    *("inlet", "jasper", "knoll", "lotus", "maple", "north", "ocean", "pearl"),
)


def system_text(group: int) -> str:
    """About 150 words that no other group begins with."""
    return " ".join(f"{WORDS[(group * 7 + index * (group + 3)) % 16]}{group}" for index in range(60))


async def cached_share(client: AsyncOpenAI) -> float:
    """Of the prompts' tokens, found cached. Each group in turn: a router that does not look has moved on meanwhile."""
    prompt = cached = 0
    for turn in range(ASKED):
        for group in range(GROUPS):
            question = f"Question {turn}: what is {group} + {turn}?"
            answer = await client.chat.completions.create(
                model="demo",
                messages=[{"role": "system", "content": system_text(group)}, {"role": "user", "content": question}],
                max_tokens=4,
            )
            assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
            if turn:  # nobody can have cached the first
                prompt += answer.usage.prompt_tokens
                cached += answer.usage.prompt_tokens_details.cached_tokens or 0
    return round(cached / prompt, 4)


async def texts_of(client: AsyncOpenAI, on_chunk: Any = lambda: None) -> list[str]:
    """24 streams at once."""

    async def one(number: int) -> str:
        stream = await client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": f"Tell me a story about {WORDS[number % 16]} number {number}."}],
            max_tokens=TOKENS,
            temperature=0.8,
            seed=number,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            on_chunk()
        return text

    return list(await asyncio.gather(*map(one, range(STREAMS))))


class Killer:
    """Ends one replica, server and all, when half of the chunks of one server would have come."""

    def __init__(self, victim: int, after: int) -> None:
        self._victim, self._left = victim, after
        self.killed: list[int] = []

    def __call__(self) -> None:
        self._left -= 1
        if self._left == 0:
            actor = psutil.Process(self._victim)
            for process in (*actor.children(recursive=True), actor):
                self.killed.append(process.pid)
                process.send_signal(signal.SIGKILL)


def replica_pids() -> list[int]:
    """Process ids of the actors that have a server."""
    found = [(process.pid, process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    named = [(pid, word) for pid, words in found for word in words if "ServeReplica" in word]
    return [pid for pid, word in named if "Replica" in word.rsplit(":", 1)[-1]]


def started(options: Options) -> AsyncOpenAI:
    """The application, ready, behind one proxy: all nodes' would share the port of this machine."""
    serve.start(proxy_location="HeadOnly")
    serve.run(build(options), name="hexserve", route_prefix="/")
    return AsyncOpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none", timeout=300, max_retries=0)


async def prove(options: Options) -> dict[str, Any]:
    """All figures."""
    plain = await cached_share(started(options.model_copy(update={"prefix_aware": False})))
    serve.delete("hexserve")
    client = started(options)
    aware = await cached_share(client)
    calm = await texts_of(client)
    killer = Killer(replica_pids()[0], STREAMS * TOKENS // 4)
    disturbed = await texts_of(client, killer)
    lost = sum(before != after for before, after in zip(calm, disturbed, strict=True))
    return {
        "nodes": NODES,
        "cached_random": plain,
        "cached_prefix_aware": aware,
        "streams": STREAMS,
        "killed_processes": len(killer.killed),
        "lost_or_changed": lost,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the Python that has hexserve")
    given = parser.parse_args(arguments)
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    for _ in range(NODES - 1):
        cluster.add_node(**NODE)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        found = asyncio.run(prove(Options(replicas=NODES, python=given.python, options=["--deterministic"])))
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()
    print(json.dumps(found))
    return int(found["lost_or_changed"] > 0 or found["killed_processes"] == 0)


if __name__ == "__main__":
    sys.exit(main())
