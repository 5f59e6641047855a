"""The command `python -m ferro_alloc ARGUMENTS`, as a program."""

import sys

from ferro_alloc.__main__ import main
from ferro_alloc.sim import _sources

# What the server of forks has loaded is no part of a program that the command runs.
files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
_sources._LIBRARIES += tuple(file for file in files if file and _sources.is_of_program(file))

sys.exit(main(sys.argv[1:]))
