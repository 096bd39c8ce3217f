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
    from collections.abc import Iterable, Iterator

_Versions = Callable[[str], str | None]
"""Name of a distribution to its installed version."""


@dataclass(frozen=True)
class PluginInfo:
    """A plugin as its distribution declares it.

    ``status`` is ``ok``, ``missing vllm>=0.10``, ``needs rlcore<0.2, found 0.3``, ``conflict: dist-a, dist-b`` or
    ``blocked``. A name that two distributions claim is listed once for each of them.
    """

    kind: Kind
    name: str
    version: str
    distribution: str
    status: str
    summary: str
    module: str

    @property
    def key(self) -> str:
        """``KIND/NAME``."""
        return f"{self.kind}/{self.name}"


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
        yield PluginInfo(
            kind=kind,
            name=entry_point.name,
            version=version,
            distribution=owner,
            status=_status(dist, [extra.strip() for extra in extras.split(",") if extra.strip()], version_of),
            # A distribution of several plugins has one summary; the table has one for each.
            summary=known.summary if known and known.distribution == owner else summary,
            module=module.strip(),
        )


def _field(dist: Distribution, name: str) -> str:
    """A field of the metadata; empty where there is none (indexing warns, and will raise)."""
    return str((dist.metadata.get_all(name) or [""])[0])


class _Unmet(NamedTuple):
    wanted: Requirement
    found: str | None

    def __str__(self) -> str:
        found = f" (found {self.found})" if self.found else ""
        return f"{self.wanted.name}{self.wanted.specifier}{found}"


def _status(dist: Distribution, extras: Iterable[str], version: _Versions) -> str:
    try:
        unmet = list(_unmet(dist, extras, version, set()))
    except InvalidRequirement as error:
        return f"missing a requirement that can be read: {str(error).splitlines()[0]}"
    for wanted, found in unmet:
        if canonicalize_name(wanted.name) == "rlcore" and found:
            return f"needs {wanted.name}{wanted.specifier}, found {found}"
    return f"missing {', '.join(dict.fromkeys(map(str, unmet)))}" if unmet else "ok"


def _unmet(
    dist: Distribution, extras: Iterable[str], version: _Versions, followed: set[tuple[str, str]]
) -> Iterator[_Unmet]:
    """What a distribution with these extras requires and the environment lacks.

    Extras that a requirement asks for (``rlcore[torch]``) are followed; what else those distributions need is their
    own affair, which pip saw to.
    """
    for requirement in map(Requirement, dist.requires or ()):
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        found = version(requirement.name)
        if found is None or not _fits(requirement, found):
            yield _Unmet(requirement, found)
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
