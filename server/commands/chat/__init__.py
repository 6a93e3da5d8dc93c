"""`hexserve chat`: talk to a server or a bundle in the terminal."""
