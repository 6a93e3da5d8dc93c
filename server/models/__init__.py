"""The models of one server: which there are, in which state each is, and whose memory is given to whom."""
