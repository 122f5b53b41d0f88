"""The machines behind a notebook: the same questions, asked of every engine of an ipyparallel cluster.

What runs on the engines is in ``agent.py`` and ``sampler.py``, and needs cuda_magic only; the rest runs in the
notebook's kernel. ipyparallel is imported when a cluster is first asked.
"""
