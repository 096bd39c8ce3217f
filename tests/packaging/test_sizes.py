"""Small files, small functions, light plugin modules."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    file
    for top in ("core", "plugins", "benchmarks", "examples")
    for file in (ROOT / top).rglob("*.py")
    if not {"build", "dist", ".venv", "runs"} & set(file.relative_to(ROOT).parts)
)
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
HEAVY = {"torch", "transformers", "tokenizers", "safetensors", "ray", "vllm", "sglang", "deepspeed"}


def long_functions(source: str) -> list[str]:
    return [
        f"{node.name} at line {node.lineno}: {lines} lines"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := node.end_lineno - node.lineno + 1) > MAX_FUNCTION_LINES
    ]


def test_long_functions_are_found():
    body = "    pass\n" * MAX_FUNCTION_LINES
    assert long_functions(f"def f():\n{body}") == ["f at line 1: 61 lines"]
    assert long_functions(f"class A:\n  async def f(self):\n{body}") == ["f at line 2: 61 lines"]
    assert long_functions(f"def f():\n{body[9:]}") == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_files_and_functions_are_small(file):
    source = file.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= MAX_FILE_LINES
    assert long_functions(source) == []


def entry_point_modules() -> list[str]:
    found = []
    for file in ROOT.glob("plugins/*/*/pyproject.toml"):
        groups = tomllib.loads(file.read_text(encoding="utf-8"))["project"]["entry-points"].values()
        found += [re.match(r"[\w.]+", target)[0] for group in groups for target in group.values()]
    return sorted(found)


def test_plugin_modules_import_nothing_heavy():
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\nprint(*sys.modules)"
    modules = entry_point_modules()
    assert "rlcore_gsm8k_rule_reward.plugin" in modules
    command = [sys.executable, "-c", code, *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    heavy = HEAVY & set(done.stdout.split())
    assert not heavy, f"one of {', '.join(modules)} imports {', '.join(sorted(heavy))}"
