"""The package with the allocator of vLLM and its list of backends."""
