"""A GGUF file's floats as a Hugging Face folder in bfloat16: `python floats_of_gguf.py FILE FOLDER`.

Runs in the environment of vLLM: torch, transformers, gguf and accelerate.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> int:
    """Read, widen, write."""
    file, folder = Path(sys.argv[1]), Path(sys.argv[2])
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    del model.hf_quantizer, model.config.quantization_config  # its blocks were widened, but it would not be saved
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
