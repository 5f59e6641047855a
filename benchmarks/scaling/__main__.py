"""`python -m benchmarks.scaling`: host time of what the core does, in small and in large worlds."""

from benchmarks.scaling.program import main

raise SystemExit(main())
