"""What was compiled: the only place where compile time and serve time meet."""
