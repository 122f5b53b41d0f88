"""What this kernel holds: the Allocator protocol, torch behind it, holders, and the map of segments."""
