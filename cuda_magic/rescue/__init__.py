"""What makes room for a statement that ran out of GPU memory. Knows the Allocator protocol, never torch."""
