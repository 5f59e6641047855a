"""Where vLLM keeps its allocator and its list of backends."""
