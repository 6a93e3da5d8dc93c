"""lm-eval judges: runs its own model classes over the task files beside this and prints what it found as JSON.

One line: {run: {task: {"results": metrics, "samples": [{"asked": [[context, continuation or settings]], "found"}]}}}.
"""

import json
import os
import tempfile
from typing import Any

# Before anything of Hugging Face is imported: nothing is downloaded, and no earlier run's copy of the tasks is used.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1"}
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="hf-")

import lm_eval
from checking import MODEL, base_url
from lm_eval.tasks import TaskManager

KEYED = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
DEMO = {"model": "demo", "max_length": 1024, "num_concurrent": 4, "max_retries": 1}
SCRIPTED = {"model": MODEL, "max_length": 8192, "num_concurrent": 4, "max_retries": 1, "header": KEYED}


def evaluate(kind: str, settings: dict[str, Any], tasks: list[str], **given: Any) -> dict[str, Any]:
    """What lm-eval makes of some tasks."""
    manager = TaskManager(include_path="tasks", include_defaults=False)
    asked: Any = {"model": kind, "model_args": settings, "tasks": tasks, "task_manager": manager, "log_samples": True}
    found = lm_eval.simple_evaluate(**asked, bootstrap_iters=0, **given)
    return {task: {"results": found["results"][task], "samples": _samples(found["samples"][task])} for task in tasks}


def _samples(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ordered = sorted(listed, key=lambda sample: sample["doc_id"])
    return [{"asked": sample["arguments"], "found": sample["filtered_resps"]} for sample in ordered]


def main() -> None:
    """Run everything, print everything."""
    scored = ["hexserve_choices", "hexserve_words", "hexserve_story"]
    completions = {"base_url": f"{base_url('demo')}/completions"}
    keyed = {"base_url": f"{base_url('scripted')}/completions", "auth_token": os.environ["OPENAI_API_KEY"]}
    chat = {"base_url": f"{base_url('scripted')}/chat/completions"}
    found = {
        "completions": evaluate("local-completions", DEMO | completions, [*scored, "hexserve_continued"]),
        "batched": evaluate("local-completions", DEMO | completions | {"batch_size": 4}, scored),
        "texts": evaluate("local-completions", DEMO | completions | {"tokenized_requests": False}, scored[:2]),
        "windows": evaluate("local-completions", DEMO | completions | {"max_length": 16}, ["hexserve_story"]),
        "keyed": evaluate("local-completions", SCRIPTED | keyed, ["hexserve_choices"]),
        "chat": evaluate("local-chat-completions", SCRIPTED | chat, ["hexserve_echoed"], apply_chat_template=True),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
