"""Which store the settings choose."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrule.admission.stores.choice import open_store
from ferrule.admission.stores.memory import MemoryStore
from ferrule.admission.stores.redis import RedisStore
from ferrule.admission.stores.shared import SharedStore
from ferrule.config import LimitsConfig, Secret


@pytest.mark.parametrize(
    ("store", "has_counts_file", "kind"),
    [
        ("memory", False, MemoryStore),
        ("memory", True, SharedStore),
        ("redis://h:1/0", False, RedisStore),
        ("redis://h:1/0", True, RedisStore),
    ],
)
async def test_the_settings_choose_the_store(
    store: str, has_counts_file: bool, kind: type, tmp_path: Path
) -> None:
    path = tmp_path / "counts"
    SharedStore.create(path, workers=1)
    opened = open_store(
        LimitsConfig(store=Secret(store)), str(path) if has_counts_file else None, worker=0
    )
    assert type(opened) is kind
    await opened.close()
