"""A folder with a manifest that loads: data, a model folder, the plugins of this repository."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from rlcore.errors import ManifestError
from rlcore.manifest.load import LoadedManifest, load_manifest

GOOD = """\
rlcore: 1
name: test
model: {path: ./model}
data:
  train: train.parquet
  prompts_per_step: 8
  max_prompt_tokens: 100
  max_response_tokens: 200
trainer: {use: fsdp}
rollout: {use: hf, samples_per_prompt: 4}
algorithm: {use: grpo}
rewards:
  correct: {use: gsm8k-rule-reward}
"""


class Workbench:
    """Writes manifests into a folder that has what they need, and loads them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "model").mkdir()
        (folder / "model/config.json").write_text(json.dumps({"model_type": "other"}))
        for name in ("train", "val"):
            parquet.write_table(pa.table({"prompt": [str(i) for i in range(20)]}), folder / f"{name}.parquet")

    def write(self, text: str = GOOD, name: str = "m.yaml", **replace: str) -> Path:
        for old, new in replace.items():
            line = next(line for line in text.splitlines() if line.split(":")[0] == old)
            text = text.replace(line, f"{old}: {new}")
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def load(self, text: str = GOOD, *overrides: str, **replace: str) -> LoadedManifest:
        return load_manifest(self.write(text, **replace), overrides)

    def problems(self, text: str = GOOD, *overrides: str, load_local: bool = True, **replace: str) -> list[str]:
        """The lines of the error, without the folder."""
        path = self.write(text, **replace)
        with pytest.raises(ManifestError) as caught:
            load_manifest(path, overrides, load_local=load_local)
        return str(caught.value).replace(f"{self.folder}/", "").splitlines()


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    return Workbench(tmp_path)


@pytest.fixture
def good() -> str:
    return GOOD


ReadYaml = Callable[[str], object]
