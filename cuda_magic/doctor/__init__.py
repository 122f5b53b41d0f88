"""Why CUDA does not start: checks as data, from facts to findings, in order of cause."""
