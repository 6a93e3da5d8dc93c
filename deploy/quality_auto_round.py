"""auto-round's W4A16, symmetric, as floats: `python quality_auto_round.py SOURCE OUTPUT CALIBRATION GROUP`.

Runs in an environment of its own. The head is quantised too, as it is in our forms. Prints the bits a weight as JSON.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from auto_round import AutoRound
from transformers import AutoModelForCausalLM, AutoTokenizer

# Its defaults but for the length, which is 2,048: together as much text as `good` reads.
LENGTH, SAMPLES, ROUNDS, BATCH = 256, 128, 200, 8


def main(source: Path, output: Path, calibration: Path, group: int, rounds: int = ROUNDS) -> int:
    """Quantise and write the floats that the codes stand for, beside the configuration and tokenizer of the source."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(source)
    if model.config.tie_word_embeddings:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    found = AutoRound(
        model,
        tokenizer,
        bits=4,
        group_size=group,
        sym=True,
        iters=rounds,
        seqlen=LENGTH,
        nsamples=SAMPLES,
        batch_size=BATCH,
        dataset=samples(tokenizer, calibration),
        layer_config={"lm_head": {"bits": 4, "group_size": group, "sym": True, "data_type": "int"}},
        device_map="cpu",
        amp=False,
        enable_torch_compile=False,  # on a CPU compiling takes longer than what it saves here
    )
    quantised, _ = found.quantize()
    quantised.to(torch.float32).save_pretrained(output)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    written = config | {"tie_word_embeddings": False, "torch_dtype": "float32"}
    (output / "config.json").write_text(json.dumps(written, indent=1), encoding="utf-8")
    for path in source.glob("tokenizer*.json"):
        shutil.copy(path, output)
    print(json.dumps({"bits": 4 + 16 / group}))
    return 0


def samples(tokenizer: Any, calibration: Path) -> list[Any]:
    """Token rows of one length, from the beginning of the text on."""
    ids = tokenizer(calibration.read_text(encoding="utf-8"), return_tensors="pt").input_ids[0]
    return [
        {"input_ids": ids[start : start + LENGTH][None], "attention_mask": torch.ones(1, LENGTH, dtype=torch.int64)}
        for start in range(0, min(len(ids) - LENGTH, SAMPLES * LENGTH), LENGTH)
    ]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), *(int(each) for each in sys.argv[4:])))
