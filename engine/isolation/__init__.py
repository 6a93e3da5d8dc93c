"""Work that may loop, hang or eat memory, in helper processes that are bounded, replaced and ended."""
