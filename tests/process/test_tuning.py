"""What a process changes of itself, seen from a process of its own."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import gc, resource
from ferrule.process.tuning import raise_file_limit, tune_gc, tune_malloc
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
raise_file_limit(); tune_gc(); tune_malloc()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard, gc.get_freeze_count() > 0, gc.get_threshold()[0])
"""


def test_files_and_the_collector_are_set() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("True True 20000\n", "")
