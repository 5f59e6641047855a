"""Python imports this module at the start of programs of tests marked `no_extension`."""

import sys

sys.modules["ferro_alloc._C"] = None  # type: ignore[assignment]  # an import of it fails
