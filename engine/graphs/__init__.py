"""Packing plans into fixed-shape arrays and running graphs on them."""
