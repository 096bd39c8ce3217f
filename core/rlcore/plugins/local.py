"""Plugins in one local file: ``use: ./my_reward.py``."""

from __future__ import annotations

import hashlib
import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

from rlcore.errors import UnknownPluginError

if TYPE_CHECKING:
    from types import ModuleType


def is_local(name: str) -> bool:
    """Whether ``use:`` names a file rather than an installed plugin: it ends in ``.py`` or has a path separator."""
    return name.endswith(".py") or "/" in name or os.sep in name


def local_path(name: str) -> Path:
    """The file that a local name means. Raises UnknownPluginError where there is none."""
    try:
        path = Path(name).expanduser().resolve()
        found = path.is_file()
    except (OSError, ValueError, RuntimeError) as error:
        raise UnknownPluginError(f"{name!r:.80} is no path here: {error}") from error
    if not found:
        raise UnknownPluginError(f"no plugin file {path}; paths in a manifest are relative to the manifest's folder")
    if path.suffix != ".py":
        raise UnknownPluginError(f"{path} is no .py file; a local plugin is one Python file")
    return path


def import_file(path: Path) -> ModuleType:
    """Import the file once per process, under a name that depends on its path only.

    Every process gives it the same name, so what it defines can be pickled from one to another that has loaded it.
    Whatever the file raises comes through.
    """
    name = f"rlcore_local_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:  # a .py file always has a loader
        raise ImportError(f"{path} can't be imported")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
