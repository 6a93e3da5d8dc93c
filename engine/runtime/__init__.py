"""Graphs and their memory: one runtime for each kind of bundle, behind one interface."""
