"""Readings of GPUs: what is there, how full it is, and which processes hold it. Nothing here formats text."""
