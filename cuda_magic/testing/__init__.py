"""The practice GPU: an honest model of a card and of the caching allocator, for tutorials, tests and CI."""
