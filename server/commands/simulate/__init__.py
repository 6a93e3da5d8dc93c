"""`hexserve simulate`: the scheduler on a simulated clock."""
