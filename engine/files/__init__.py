"""Files that others wrote: opened only when they are regular, read within bounds, named within their folder."""
