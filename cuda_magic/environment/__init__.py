"""Environment variables: catalogue, allocator grammar, visible devices, the state of this process, exports."""
