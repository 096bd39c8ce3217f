"""The core outside ``rlcore.torch`` stays light. Told in fresh processes: other tests import torch into this one."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = [
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "ray",
    "vllm",
    "sglang",
    "deepspeed",
    "tensorboard",
    "wandb",
]

WALK = """
import importlib, json, pkgutil, sys
import rlcore
heavy, found, seen = set(json.loads(sys.argv[1])), {}, ["rlcore"]

def walk(package):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if module.name in ("rlcore.torch", "rlcore.__main__"):
            continue
        loaded = importlib.import_module(module.name)
        seen.append(module.name)
        for name in heavy & set(sys.modules):
            found.setdefault(name, module.name)
        if module.ispkg:
            walk(loaded)

walk(rlcore)
print(json.dumps({"seen": seen, "found": found}))
"""


def test_no_module_outside_rlcore_torch_imports_a_framework() -> None:
    done = subprocess.run([sys.executable, "-c", WALK, json.dumps(HEAVY)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert {"rlcore.plugins.loading", "rlcore.cli.plugins", "rlcore.data.batch", "rlcore.losses.clip"} <= set(
        told["seen"]
    )
    assert told["found"] == {}, "framework: the module that imported it"


def test_rlcore_plugins_imports_metadata_and_the_command_line_only() -> None:
    # Newer typers import pydantic by themselves; rlcore's own use of it is in rlcore.plugins.config.
    names = {"torch", "transformers", "numpy", "pyarrow", "rich", "rlcore.plugins.config"}
    code = (
        "import sys; sys.argv = ['rlcore', 'plugins']\nfrom rlcore.cli import main\n"
        "try: main()\nexcept SystemExit as end: assert not end.code, end.code\n"
        f"print(*sorted({names} & set(sys.modules)), sep=',')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["KIND", "NAME", "VERSION", "DISTRIBUTION", "STATUS", "SUMMARY"]
    assert len(lines) > 6
    assert lines[-1] == ""
