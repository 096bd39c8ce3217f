"""Imports one plugin in a process of its own and tells how that went.

Run as ``python -P -m rlcore.plugins.probe KIND NAME``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass

from rlcore.errors import PluginError
from rlcore.plugins.kinds import Kind, as_kind

HEAVY = ("torch", "transformers", "ray", "vllm", "deepspeed", "sglang")
"""Packages that a plugin module must not import at its top."""
_MARK = "rlcore-probe:"
_TIMEOUT_SECONDS = 120


@dataclass(frozen=True)
class Probe:
    """How the import of a plugin's module went: its seconds, heavy packages it pulled in, the error."""

    seconds: float
    heavy: tuple[str, ...]
    error: str | None


def probe(kind: Kind, name: str) -> Probe:
    """Import an installed plugin in a fresh interpreter, so that a crash there is an answer and no crash here."""
    # -P: the current folder is not importable, so a folder named as a package can't stand in for it.
    command = [sys.executable, "-P", "-m", "rlcore.plugins.probe", kind, name]
    start = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Probe(time.perf_counter() - start, (), f"took more than {_TIMEOUT_SECONDS} seconds to import")
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(_MARK):
            told = json.loads(line.removeprefix(_MARK))
            return Probe(told["seconds"], tuple(told["heavy"]), told["error"])
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    return Probe(time.perf_counter() - start, (), f"ended its process with exit code {done.returncode}: {last}")


def _main(kind: str, name: str) -> None:
    from rlcore.plugins.loading import load

    seconds, error = 0.0, None
    try:
        seconds = load(as_kind(kind, "probe"), name, ready=False).import_seconds
    except PluginError as caught:
        error = str(caught)
    told = {
        "seconds": seconds,
        "heavy": [package for package in HEAVY if package in sys.modules],
        "error": error,
    }
    print(f"\n{_MARK}{json.dumps(told)}")  # noqa: T201 - read by probe(); whatever the plugin printed stands before it


if __name__ == "__main__":
    _main(*sys.argv[1:])
