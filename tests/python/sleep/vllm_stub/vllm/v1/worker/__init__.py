"""A package of the stand-in for vLLM."""
