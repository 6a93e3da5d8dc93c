"""The bodies and answers of every wire format as pydantic models, and nothing else."""
