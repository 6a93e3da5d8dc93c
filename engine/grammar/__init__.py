"""Output that is valid by construction: what may be asked, its compilation outside the server, masks in the worker."""
