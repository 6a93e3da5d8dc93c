"""What scheduling would come to on a device: the real scheduler and two others on a simulated clock. Runs no graph."""
