"""The kinds of plugin and the entry-point group of each. Imports nothing heavy: listing plugins needs only this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from rlcore.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["trainer", "rollout", "algorithm", "loss", "reward", "tracker"]

KINDS: tuple[Kind, ...] = get_args(Kind)

GROUPS: Mapping[Kind, str] = {
    "trainer": "rlcore.trainers",
    "rollout": "rlcore.rollout",
    "algorithm": "rlcore.algorithms",
    "loss": "rlcore.losses",
    "reward": "rlcore.rewards",
    "tracker": "rlcore.trackers",
}
"""The entry-point group of each kind of plugin."""


def as_kind(text: str, where: str) -> Kind:
    """The kind of this name; ``where`` it was given begins the error."""
    if text in KINDS:
        return text
    raise PluginError(f"{where}: {text!r} is no kind of plugin; kinds are {', '.join(KINDS)}")


def split_key(text: str, where: str) -> tuple[Kind, str]:
    """``("reward", "x")`` of ``reward/x``; ``where`` it was given begins the error."""
    kind, slash, name = text.partition("/")
    if not slash or not name:
        raise PluginError(f"{where}: {text!r} is not KIND/NAME, such as reward/my-reward; kinds are {', '.join(KINDS)}")
    return as_kind(kind, where), name
