"""Python imports this module at the start of each program that a test starts in a new interpreter.

Most of such a program's time is the start and the end of torch. Collections find nothing while
torch is imported. At the end they would visit all objects of torch several times, which takes a
quarter of the time of such a program.
"""

import atexit
import gc


def keep_old_objects() -> None:
    """Collects only the youngest garbage, which is the program's own."""
    gc.collect(0)
    gc.freeze()


gc.set_threshold(100_000)
atexit.register(keep_old_objects)
