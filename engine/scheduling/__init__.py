"""Which sequences the next pass serves, with how many rows each. Pure: no clock, no arrays, no I/O."""
