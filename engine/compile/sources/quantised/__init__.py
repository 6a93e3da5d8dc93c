"""Checkpoints whose weights come quantised: GPTQ, AWQ, compressed-tensors, FP8, MXFP4, NVFP4, bitsandbytes."""
