"""Frozen engine settings: what the worker is told on its command line, as one JSON object."""

from dataclasses import dataclass

PAGE_COLUMNS = 16
KV_SAVE_MB_PER_S = 50.0  # slower disks lose what is not written in time


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the worker runs one bundle.

    bundle: folder path. threads: onnxruntime intra-op threads, 0 = its own choice.
    spin: whether the CPU provider's threads wait without sleeping: auto (where the weights are large), on or off.
    max_rows: most rows of a free-shape pass. max_context: tokens of one sequence, 0 = what the bundle allows.
    max_running: most sequences that hold columns at once; the others wait.
    pools: past-KV pools. pool_columns: columns of each, 0 = from the bundle.
    embed_rows: most rows of a pass that texts to embed or to score take while something generates, beside padding.
    reserve_tokens: first guess of an answer's length, for which a pool keeps columns free, 0 = none.
    max_gap_ms: what prefill may stretch the time between two tokens of one stream to: the price of a pass times the
    passes that serve every decode once. Where decodes alone take longer, prefill gets twice their gap in turns.
    prefix_cache: share the cached columns of equal prompt beginnings.
    kv_offload_mb: MiB of host memory for prefixes that left the pools, 0 = none.
    kv_file: file that keeps cached pages over a restart, "" = none; kv_file_mb: MiB it may take.
    window: attention sees the last so many tokens of a sequence, and the first `sinks`; 0 = all of them.
    deterministic: one variant for every pass.
    lookup_rows: most prompt-lookup guesses of a sequence in a pass, 0 = off; padding, or rows where they are worth it.
    prediction_rows: the same for guesses from a request's own prediction.
    draft: folder of the bundle that guesses for this one, "" = none. draft_tokens: most tokens that it proposes for a
    sequence and pass, 0 = as many as pay.
    forecast: let a model that has a forecast prefix guess its own next tokens in rows that would be padding.
    pass_timeout_s: silence of the worker, or a pass of it, after which it is killed and replaced; a pass that should
    be long may take 20 times what it should. load_timeout_s: the same for its start. 0 = no bound.
    log_level: least severe message that the worker writes: debug, info, warning or error.
    cost_cache: folder of pass times, "" = none.
    paced: `device/model` of `engine/simulate/published.py` whose pass times are kept by sleeping instead of computing:
    every answer is noise, "" = compute.
    lora: adapters as NAME=FOLDER,..., each a model of its own name; "" = none.
    qnn_options, qnn_library_dir, qnn_op_packages: see `engine/qnn/environment.py`; "" = none, the package's libraries.
    """

    bundle: str
    threads: int = 0
    spin: str = "auto"
    max_rows: int = 256
    max_context: int = 0
    max_running: int = 256
    pools: int = 1
    pool_columns: int = 0
    reserve_tokens: int = 128
    max_gap_ms: float = 250.0
    embed_rows: int = 16
    prefix_cache: bool = True
    kv_offload_mb: int = 1024
    kv_file: str = ""
    kv_file_mb: int = 1024
    window: int = 0
    sinks: int = 0
    deterministic: bool = False
    lookup_rows: int = 0
    prediction_rows: int = 16
    draft: str = ""
    draft_tokens: int = 0
    forecast: bool = True
    pass_timeout_s: float = 30.0
    load_timeout_s: float = 1800.0
    log_level: str = "info"
    cost_cache: str = ""
    paced: str = ""
    lora: str = ""
    qnn_options: str = ""
    qnn_library_dir: str = ""
    qnn_op_packages: str = ""

    @property
    def save_s(self) -> float:
        """How long a worker may take at its end to write its `kv_file`; 0 without one."""
        return 5.0 + self.kv_file_mb / KV_SAVE_MB_PER_S if self.kv_file else 0.0
