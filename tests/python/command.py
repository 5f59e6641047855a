"""The command `python -m ferro_alloc ARGUMENTS`, as a program."""

import sys

from ferro_alloc.__main__ import main

sys.exit(main(sys.argv[1:]))
