"""Low-rank adapters (LoRA) in PEFT's form: which ones a server has, and what their folders hold."""
