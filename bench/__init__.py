"""Benchmarks: one JSON line each, named as scripts and charts know them."""
