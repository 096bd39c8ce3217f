"""Which plugins are installed, told from package metadata alone: no plugin is imported."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from typing import TYPE_CHECKING, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from rlcore import environment
from rlcore.plugins.kinds import GROUPS, KINDS, Kind, split_key
from rlcore.plugins.known import KNOWN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_Versions = Callable[[str], str | None]
"""Name of a distribution to its installed version."""


@dataclass(frozen=True)
class PluginInfo:
    """A plugin as its distribution declares it.

    ``status`` is ``ok``, ``missing vllm>=0.10``, ``needs rlcore<0.2, found 0.3``, ``conflict: dist-a, dist-b`` or
    ``blocked``. A name that two distributions claim is listed once for each of them. ``fix`` is the command that
    installs what is missing, for the checkout's folder where an extra of rlcore is; empty where nothing is missing.
    """

    kind: Kind
    name: str
    version: str
    distribution: str
    status: str
    summary: str
    module: str
    fix: str = ""

    @property
    def key(self) -> str:
        """``KIND/NAME``."""
        return f"{self.kind}/{self.name}"

    @property
    def how_to_fix(self) -> str:
        """``fix`` with where to run it; empty where nothing is missing."""
        where = "in the checkout of rlcore, run: " if " -e " in self.fix else "run: "
        return f"{where}{self.fix}" if self.fix else ""


def find_plugins(kind: Kind | None = None) -> list[PluginInfo]:
    """Every installed plugin (of this kind), in the order of kinds, then by name.

    Raises PluginError where ``RLCORE_BLOCK`` is no list of KIND/NAME.
    """
    blocked = {"/".join(split_key(entry, environment.BLOCK)) for entry in environment.blocked_plugins()}
    version_of = functools.cache(_installed_version)  # for this listing: a later one sees what pip did meanwhile
    found = [info for dist in _plugin_distributions() for info in _plugins_of(dist, version_of)]
    found = [info for info in found if kind in (None, info.kind)]
    claims: dict[str, list[str]] = {}
    for info in found:
        claims.setdefault(info.key, []).append(info.distribution)
    listed = []
    for info in found:
        claimants = sorted(claims[info.key])
        if info.key in blocked:
            info = replace(info, status="blocked")
        elif len(claimants) > 1:
            info = replace(info, status=f"conflict: {', '.join(claimants)}")
        listed.append(info)
    return sorted(listed, key=lambda info: (KINDS.index(info.kind), info.name, info.distribution))


def _plugin_distributions() -> Iterator[Distribution]:
    """Distributions with entry points of ours, each once: of those of one name, the first on ``sys.path``.

    So an editable install beside a stale ``dist-info`` is one distribution, and no conflict.
    """
    groups = set(GROUPS.values())
    seen = {""}
    for dist in distributions():
        if any(entry_point.group in groups for entry_point in dist.entry_points):
            name = canonicalize_name(_field(dist, "Name"))
            if name not in seen:
                seen.add(name)
                yield dist


def _plugins_of(dist: Distribution, version_of: _Versions) -> Iterator[PluginInfo]:
    kind_of = {group: kind for kind, group in GROUPS.items()}
    owner, version, summary = _field(dist, "Name"), _field(dist, "Version"), _field(dist, "Summary")
    listed = set()
    for entry_point in dist.entry_points:
        kind = kind_of.get(entry_point.group)
        if kind is None or (kind, entry_point.name) in listed:
            continue
        listed.add((kind, entry_point.name))
        # By hand: EntryPoint.module raises on a malformed value, and EntryPoint.extras splits "a-b" in two.
        module, _, extras = entry_point.value.rstrip("] ").partition("[")
        known = KNOWN.get(f"{kind}/{entry_point.name}")
        wanted_extras = [extra.strip() for extra in extras.split(",") if extra.strip()]
        status, fix = _status(dist, wanted_extras, version_of)
        yield PluginInfo(
            kind=kind,
            name=entry_point.name,
            version=version,
            distribution=owner,
            status=status,
            # A distribution of several plugins has one summary; the table has one for each.
            summary=known.summary if known and known.distribution == owner else summary,
            module=module.strip(),
            fix=fix,
        )


def _field(dist: Distribution, name: str) -> str:
    """A field of the metadata; empty where there is none (indexing warns, and will raise)."""
    return str((dist.metadata.get_all(name) or [""])[0])


class _Unmet(NamedTuple):
    """A requirement, what is installed in its place, and the extra of rlcore that asks for it, if one does."""

    wanted: Requirement
    found: str | None
    extra: str = ""

    def __str__(self) -> str:
        found = f" (found {self.found})" if self.found else ""
        return f"{self.wanted.name}{self.wanted.specifier}{found}"


def _status(dist: Distribution, extras: Sequence[str], version: _Versions) -> tuple[str, str]:
    """The status, and the command that mends it where one does."""
    try:
        unmet = list(_unmet(dist, extras, version, set()))
    except InvalidRequirement as error:
        return f"missing a requirement that can be read: {str(error).splitlines()[0]}", ""
    for wanted, found, _ in unmet:
        if _is_core(wanted.name) and found:
            return f"needs {wanted.name}{wanted.specifier}, found {found}", ""
    if not unmet:
        return "ok", ""
    return f"missing {', '.join(dict.fromkeys(map(str, unmet)))}", _command(unmet)


def _command(unmet: Sequence[_Unmet]) -> str:
    """The pip command that installs these; rlcore's extras as in its checkout."""
    extras = dict.fromkeys(miss.extra for miss in unmet if miss.extra)
    own = dict.fromkeys(f'"{miss.wanted.name}{miss.wanted.specifier}"' for miss in unmet if not miss.extra)
    return " ".join(["pip install", *([f'-e ".[{",".join(extras)}]"'] if extras else []), *own])


def _is_core(name: str) -> bool:
    return canonicalize_name(name) == "rlcore"


def _unmet(
    dist: Distribution, extras: Collection[str], version: _Versions, followed: set[tuple[str, str]]
) -> Iterator[_Unmet]:
    """What a distribution with these extras requires and the environment lacks.

    Extras that a requirement asks for (``rlcore[torch]``) are followed; what else those distributions need is their
    own affair, which pip saw to.
    """
    core = _is_core(_field(dist, "Name"))
    for requirement in map(Requirement, dist.requires or ()):
        marker = requirement.marker
        asking = [extra for extra in ("", *extras) if marker is None or marker.evaluate({"extra": extra})]
        if not asking:
            continue
        found = version(requirement.name)
        if found is None or not _fits(requirement, found):
            yield _Unmet(requirement, found, asking[0] if core else "")
            continue
        name = canonicalize_name(requirement.name)
        fresh = {extra for extra in requirement.extras if (name, extra) not in followed}
        if fresh:
            followed |= {(name, extra) for extra in fresh}
            yield from _unmet(distribution(requirement.name), fresh, version, followed)


def _installed_version(name: str) -> str | None:
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return None


def _fits(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:  # versions older than PEP 440, such as "2004d"
        return not requirement.specifier
