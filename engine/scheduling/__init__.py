"""Who runs next. Pure: no clock, no arrays, no I/O."""
