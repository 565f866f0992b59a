"""Strict readers of `sources/`: one module per kind of file, every fault collected, none raised alone."""
