"""Process-wide settings for a busy proxy: garbage collector, malloc, open-file limit."""

from __future__ import annotations

import ctypes
import gc
import resource

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>


def tune_gc() -> None:
    """Freezes what was made at start and collects rarely: requests make few cycles, and looking for
    them every 700 objects took 4 % of a request."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def tune_malloc() -> None:
    """Keeps glibc from returning the memory of large requests to the kernel: page faults took a
    tenth of such a request."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    mallopt(M_TRIM_THRESHOLD, 64 << 20)
    mallopt(M_MMAP_THRESHOLD, 32 << 20)


def raise_file_limit() -> None:
    """A stream takes two descriptors: the usual soft limit of 1024 allows 500."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
