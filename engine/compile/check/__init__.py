"""How near a finished bundle is to its checkpoint."""
