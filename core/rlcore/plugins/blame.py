"""Whose fault a failure is: what a plugin raises when the loop calls it, told with the plugin's name and line."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import dropwhile
from pathlib import Path

from rlcore.errors import PluginError, RlcoreError

_CORE = str(Path(__file__).parents[1])


@contextmanager
def blame(who: object) -> Iterator[None]:
    """Around a call of a plugin: errors other than rlcore's own become a PluginError that names ``who`` and where."""
    try:
        yield
    except RlcoreError:
        raise
    except Exception as error:  # the plugin boundary; the plugin is named
        raise PluginError(f"{who} failed with {type(error).__name__}: {error}{_place(error)}") from error


def _place(error: Exception) -> str:
    """The deepest line of the plugin's own file: past the core that called it, before the libraries that it called."""
    frames = traceback.extract_tb(error.__traceback__)
    return deepest_line(list(dropwhile(lambda frame: frame.filename.startswith(_CORE), frames)))


def deepest_line(frames: Sequence[traceback.FrameSummary]) -> str:
    """`` (at FILE:LINE)``: the deepest of the frames that are in the first one's file; nothing without frames."""
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    return f" (at {own[-1].filename}:{own[-1].lineno})" if own else ""
