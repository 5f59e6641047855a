"""Python imports this module at the start of programs of tests marked `no_extension`."""

import sys
from pathlib import Path

sys.modules["ferro_alloc._C"] = None  # type: ignore[assignment]  # an import of it fails

if __name__ == "sitecustomize":  # in a new interpreter, where this module hides the other one
    other = Path(__file__).parents[1] / "start" / "sitecustomize.py"
    exec(compile(other.read_text(), other, "exec"))
