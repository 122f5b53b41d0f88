"""Room is made where memory is asked for: what happens inside torch's own call of the CUDA driver.

shim.c stands in the slots of cudaMalloc and cudaFree; slots.py finds them; native.py speaks to the shim; handler.py
decides what leaves the card when there is no room. What is torch's own lies in memory/torch/room/.
"""
