from __future__ import annotations

from pathlib import Path

import pytest

from fxprune.latency.cache import CACHE


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Measured times of tests are not kept among those of the user."""
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache"
