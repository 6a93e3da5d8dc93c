"""One hexserve for many machines, by Ray Serve: the same API in front, a server on each machine behind it.

    pip install "hexserve[compile,ray]"
    serve run deploy.ray_serve:build bundle=demo replicas=3

Each replica starts `hexserve serve` on a loopback port of its machine and passes requests to it. Ray's prefix-aware
router sends a request where its prompt's beginning is cached. When a replica is lost, its streams go on at another one
(`gateway_calls.py`). Nodes that may serve have the resource "hexserve": `ray start --resources '{"hexserve": 1}'`.
"""

import contextlib
import sys
from collections.abc import AsyncGenerator
from typing import Any

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from deploy.gateway_calls import BETWEEN_SERVERS, Call, Exchange
from deploy.gateway_relay import LOST, Relayed, error_answer
from server.commands.own_server import free_port, running_child

# Its public name imports vLLM; this module does not.
ROUTER = "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router:PrefixCacheAffinityRouter"
METHODS = ["GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"]
BODY_LIMIT = 16 * 1024 * 1024
app = FastAPI(openapi_url=None, redirect_slashes=False)


class Options(BaseModel):
    """What `serve run` may be given: the bundle, further options of `hexserve serve`, and how many replicas there are.

    queue: requests that a replica should have at once, by which Ray starts and ends replicas between `replicas` and
    `most_replicas`. imbalance: how many more requests the replica with the cached prefix may have than another one.
    """

    bundle: str = "demo"
    options: list[str] = Field(default_factory=list)
    replicas: int = Field(default=1, ge=1)
    most_replicas: int = Field(default=0, ge=0)
    queue: float = Field(default=12.0, gt=0)
    most_requests: int = Field(default=64, ge=1)
    imbalance: int = Field(default=16, ge=0)
    prefix_aware: bool = True
    python: str = sys.executable


@serve.deployment
class Replica:
    """One server, as a child process of this actor."""

    def __init__(self, options: Options) -> None:
        port = free_port()
        told = ["--bundle", options.bundle, "--host", "127.0.0.1", "--port", str(port), "--resumable"]
        command = [options.python, "-P", "-m", "server", "serve", *told, *options.options]
        self._ending = contextlib.ExitStack()
        server = self._ending.enter_context(running_child(command, port))
        self.pid = server.pid
        self._client = httpx.AsyncClient(base_url=server.address, timeout=None, trust_env=False)

    async def relay(self, call: Call) -> AsyncGenerator[Any, None]:
        """Status and headers first, then the body as it comes."""
        sending = self._client.build_request(call.method, call.path, headers=list(call.headers), content=call.body)
        answer = await self._client.send(sending, stream=True)
        try:
            yield answer.status_code, [(k, v) for k, v in answer.headers.items() if k not in BETWEEN_SERVERS]
            async for data in answer.aiter_raw():
                yield data
        finally:
            await answer.aclose()

    async def check_health(self) -> None:
        """Asked by Ray now and then; a server that is gone for good is replaced with its replica."""
        (await self._client.get("/health/live", timeout=10)).raise_for_status()

    def __del__(self) -> None:
        self._ending.close()


@serve.deployment(max_ongoing_requests=4096)
@serve.ingress(app)
class Gateway:
    """Passes every request to a replica, and goes on with it elsewhere when that one is lost."""

    def __init__(self, replicas: DeploymentHandle, may_store: bool) -> None:
        self._replicas = replicas.options(stream=True)
        self._may_store = may_store

    @app.api_route("/{path:path}", methods=METHODS)
    async def pass_on(self, request: Request) -> Response:
        """The answer of a replica."""
        body = await request.body()
        if len(body) > BODY_LIMIT:
            return error_answer(413, f"The request body is larger than {BODY_LIMIT} bytes.")
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        exchange = Exchange(request.method, path, dict(request.headers), body, self._may_store)
        answer = Relayed(self._replicas, exchange)
        try:
            await answer.begin()
            if answer.is_stream:
                return StreamingResponse(answer.pieces(), answer.status, answer.headers)
            return Response(await answer.whole(), answer.status, answer.headers)
        except LOST as error:
            return error_answer(502, f"No server could answer: {type(error).__name__}.")


def build(options: Options) -> Any:
    """The application for `serve run`."""
    scaling: dict[str, Any] = {"num_replicas": options.replicas}
    if options.most_replicas > options.replicas:
        bounds = {"min_replicas": options.replicas, "max_replicas": options.most_replicas}
        scaling = {"autoscaling_config": AutoscalingConfig(**bounds, target_ongoing_requests=options.queue)}
    if options.prefix_aware:
        rules = {"imbalanced_threshold": options.imbalance, "do_eviction": True}
        scaling["request_router_config"] = RequestRouterConfig(request_router_class=ROUTER, request_router_kwargs=rules)
    replica = Replica.options(
        **scaling,
        max_ongoing_requests=options.most_requests,
        ray_actor_options={"num_cpus": 0, "resources": {"hexserve": 1}},
        health_check_period_s=2,
        graceful_shutdown_timeout_s=10,
    )
    return Gateway.bind(replica.bind(options), "--store-responses" in options.options)
