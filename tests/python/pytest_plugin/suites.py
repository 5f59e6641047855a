"""Runs pytest on the suite in each FOLDER, one after the other in this process.

    suites.py FOLDER ...

A folder contains test_suite.py and options.json. The run adds output.txt and junit.xml. Prints the
exit statuses as JSON.
"""

import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

for name in [name for name in os.environ if name.startswith("PYTEST_")]:
    del os.environ[name]
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

statuses = []
for folder in map(Path, sys.argv[1:]):
    os.chdir(folder)
    options = json.loads(Path("options.json").read_text())
    with Path("output.txt").open("w") as output, redirect_stdout(output), redirect_stderr(output):
        statuses.append(int(pytest.main(options)))
    sys.modules.pop("test_suite", None)
print(json.dumps(statuses))
