"""The part of vLLM 0.33 that its sleep-mode backends touch, for tests without vLLM."""
