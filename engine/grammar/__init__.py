"""Output that is valid by construction: the specs, their compilation in processes apart, masks in the worker."""
