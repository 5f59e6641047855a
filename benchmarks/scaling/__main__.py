"""`python -m benchmarks.scaling`: host time of the core's operations in small and large worlds."""

from benchmarks.scaling.program import main

raise SystemExit(main())
