"""Runs a program with the debug mode of graphs on from the installation: PROGRAM ARGUMENTS.

Writes to the file that FERRO_DEBUGGED names how many graphs were captured, how many blocks they
use, how often they replayed, and how many replays were refused.
"""

import atexit
import json
import os
import runpy
import sys
from pathlib import Path

import ferro_alloc
from ferro_alloc import graphs
from ferro_alloc.graphs import _debug

install = ferro_alloc.install
counts = {"graphs": 0, "blocks": 0, "replays": 0, "misuses": 0}


def install_and_debug(*arguments, **options):
    install(*arguments, **options)
    graphs.debug()


class Counting(_debug._Watch):
    def capture_end(self, graph, end):
        super().capture_end(graph, end)
        counts["graphs"] += 1
        counts["blocks"] += self._graphs[graph].uses.blocks

    def replay(self, graph, replay):
        counts["replays"] += graph in self._graphs
        try:
            super().replay(graph, replay)
        except graphs.GraphMisuseError:
            counts["misuses"] += 1
            raise


ferro_alloc.install = install_and_debug
_debug._Watch = Counting
atexit.register(lambda: Path(os.environ["FERRO_DEBUGGED"]).write_text(json.dumps(counts)))
del sys.argv[0]
sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
runpy.run_path(sys.argv[0], run_name="__main__")
