"""Names of the plugin's markers and fixture."""

LIMIT = "gpu_memory_limit"
COMPARE = "gpu_memory_compare"
FIXTURE = "gpu_memory"
