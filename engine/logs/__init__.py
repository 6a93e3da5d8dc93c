"""How both processes write their log: nobody waits for who reads it."""
