"""Every error that rlcore raises on purpose.

One root, ``RlcoreError``; each leaf also inherits the standard error it is a case of, so that code that knows nothing
of rlcore can still catch it. All are picklable: they are built from their message alone and cross process borders.

A message says where (file:line:col, row, option path), what was given, what is allowed, and what to do.
"""

from __future__ import annotations


class RlcoreError(Exception):
    """Root of all errors raised on purpose; the command line prints these without a traceback."""

    exit_code = 1


class ManifestError(RlcoreError, ValueError):
    """A manifest that can't be run. The message holds every problem found, one per line."""

    exit_code = 2


class PluginError(RlcoreError):
    """A plugin that can't be found, imported or used."""

    exit_code = 2


class UnknownPluginError(PluginError, LookupError):
    """No installed distribution provides a plugin of this name."""


class BrokenPluginError(PluginError, ImportError):
    """A plugin whose module can't be imported or doesn't implement its hook."""


class PluginConflictError(PluginError, ValueError):
    """Two distributions claim one plugin name."""


class DataError(RlcoreError, ValueError):
    """Data that can't be read as prompts: a missing file or column, a null answer, a prompt that is too long."""

    exit_code = 2


class ModelError(RlcoreError, ValueError):
    """A model or tokenizer folder that can't be used."""

    exit_code = 2


class RunFolderError(RlcoreError, OSError):
    """A run or output folder that is in the way, or isn't what it should be."""

    exit_code = 2


class CheckpointError(RlcoreError, OSError):
    """A checkpoint that is missing, cut, or made by another manifest."""

    exit_code = 2


class BatchError(RlcoreError, ValueError):
    """Columns of a batch that don't fit together."""


class RewardError(RlcoreError, RuntimeError):
    """A reward that raised, or returned something that is no reward. The message shows the sample."""


class NoSpreadError(RlcoreError, RuntimeError):
    """Dynamic sampling found too few prompts whose answers differ in reward."""


class WeightSyncError(RlcoreError, RuntimeError):
    """Weights that did not reach a rollout engine as the trainer holds them."""
