from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rlcore.plugins.interfaces import TrackerContext


@pytest.fixture
def context(tmp_path: Path) -> Callable[..., TrackerContext]:
    def make(**state: Any) -> TrackerContext:
        return TrackerContext("my-run", tmp_path, {"trainer": {"lr": 1e-6}}, state, total_steps=150)

    return make
