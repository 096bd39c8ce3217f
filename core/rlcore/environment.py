"""The one place where the core reads environment variables."""

from __future__ import annotations

import os

BLOCK = "RLCORE_BLOCK"
"""Plugins that must not be used: ``reward/x,loss/y``."""
DEBUG = "RLCORE_DEBUG"
"""Show tracebacks on the command line, unless empty or 0."""


def blocked_plugins() -> frozenset[str]:
    """The ``KIND/NAME`` of every plugin in ``RLCORE_BLOCK``."""
    return frozenset(part.strip() for part in os.environ.get(BLOCK, "").split(",") if part.strip())


def debug() -> bool:
    """Whether ``RLCORE_DEBUG`` asks for tracebacks."""
    return os.environ.get(DEBUG, "") not in ("", "0")
