"""Settings of the process itself that a busy proxy needs: the garbage collector, malloc, the number
of open files."""

from __future__ import annotations

import ctypes
import gc
import resource

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>


def tune_gc() -> None:
    """What was made at start stays; requests make few cycles, and looking for them every 700
    objects was 4 % of a request."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def tune_malloc() -> None:
    """Keeps glibc from giving the memory of every large request back to the system: the page faults
    were a tenth of its cost."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library, without that habit
        return
    mallopt(M_TRIM_THRESHOLD, 64 << 20)
    mallopt(M_MMAP_THRESHOLD, 32 << 20)


def raise_file_limit() -> None:
    """Every stream takes two descriptors; the soft limit of 1024 would end at 500."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
