"""Hours of mixed traffic in minutes: whether an answer is lost, a request hangs or memory grows."""
