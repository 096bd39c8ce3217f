"""The prompts of a run: read, mapped, templated, tokenised and judged before any model is loaded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from rlcore.data.ids import stable_prompt_id
from rlcore.data.reader import MISSING, DataFile, Row, reach, read_files
from rlcore.data.sample import Prompt
from rlcore.data.sampler import check_enough
from rlcore.data.templating import Content, Template, text_of
from rlcore.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlcore.data.tokenizer import Tokenizer
    from rlcore.manifest.schema import DataSection, Manifest

Split = Literal["train", "val"]

_ROWS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class PromptReport:
    """What became of the rows of a split.

    ``longest_tokens`` is the longest prompt as the data has it, before any was dropped or cut. ``sources`` counts the
    prompts that are left by data set.
    """

    split: Split
    rows: int
    dropped: int
    truncated: int
    longest_tokens: int
    max_prompt_tokens: int
    sources: Mapping[str, int]

    def __str__(self) -> str:
        sources = ", ".join(f"{name or 'unnamed'} {count:,}" for name, count in self.sources.items())
        changes = "".join(
            f"; {count:,} longer than {self.max_prompt_tokens:,} tokens {what}"
            for count, what in ((self.dropped, "dropped"), (self.truncated, "cut"))
            if count
        )
        prompts = self.rows - self.dropped
        return (
            f"{self.split}: {prompts:,} prompts of {self.rows:,} rows ({sources}), "
            f"the longest of {self.longest_tokens:,} tokens{changes}."
        )


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts of a split in the order of the data, none longer than ``data.max_prompt_tokens``."""

    prompts: list[Prompt]
    report: PromptReport


@dataclass(frozen=True, slots=True)
class _Draft:
    """A row that can be used, not yet tokenised."""

    id: str
    content: Content
    ground_truth: Any
    source: str
    extra: Mapping[str, Any]
    location: str


@dataclass(slots=True)
class _Faults:
    """Rows that can't be used, so that all are counted and the first ones named in one error."""

    found: list[str] = field(default_factory=list)

    def add(self, location: str, what: object) -> None:
        self.found.append(f"{location}: {what}")

    def check(self, split: Split, advice: str) -> None:
        if self.found:
            shown = "".join(f"\n  {line}" for line in self.found[:_ROWS_SHOWN])
            more = len(self.found) - _ROWS_SHOWN
            rest = f"\n  and {more:,} more" if more > 0 else ""
            rows = f"{len(self.found):,} row{'s' if len(self.found) > 1 else ''}"
            raise DataError(f"data.{split}: {rows} can't be used; {advice}:{shown}{rest}")


def load_prompt_set(manifest: Manifest, split: Split, tokenizer: Tokenizer) -> PromptSet:
    """Read and judge the prompts of a split; no model is needed for it.

    Raises:
        DataError: a file, column, ground truth, id or message is missing or wrong; prompts are too long where
            ``data.overlong_prompts`` refuses that, or all are; or (train) there are fewer than one step needs.
    """
    data = manifest.data
    given = data.train if split == "train" else data.val
    paths = [manifest.path(path) for path in ([given] if isinstance(given, str) else given or [])]
    if not paths:
        raise DataError(f"data.{split} names no file")
    template = Template.of(data, tokenizer)
    drafts = _drafts(read_files(paths), data, split, template)
    prompts, report = _judged(drafts, data, split, template)
    if not prompts:
        raise DataError(
            f"data.{split}: all {report.rows:,} prompts are longer than data.max_prompt_tokens "
            f"({data.max_prompt_tokens:,}); the longest has {report.longest_tokens:,} tokens, chat template included"
        )
    if split == "train":
        try:
            check_enough(len(prompts), data.prompts_per_step, data.last_batch)
        except DataError as error:
            raise DataError(f"{error} ({report})") from error
    return PromptSet(prompts, report)


def _drafts(files: Sequence[DataFile], data: DataSection, split: Split, template: Template) -> list[_Draft]:
    faults = _Faults()
    drafts = []
    seen: Counter[str] = Counter()
    first: dict[str, str] = {}  # id: location
    for file in files:
        columns = _Columns.of(file, data)
        for row in file.rows:
            try:
                draft = columns.draft(row, template)
            except DataError as error:
                faults.add(row.location, error)
                continue
            seen[draft.id] += 1
            if seen[draft.id] == 1:
                first[draft.id] = row.location
            elif columns.id:
                faults.add(row.location, f"id {draft.id!r} ({columns.id}) is also that of {first[draft.id]}")
            else:
                draft = replace(draft, id=f"{draft.id}-{seen[draft.id]}")
            drafts.append(draft)
    faults.check(split, "mend them or leave them out")
    return drafts


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where a file keeps what a prompt needs."""

    prompt: str
    ground_truth: str | None
    source: str | None
    id: str | None
    default_source: str

    @classmethod
    def of(cls, file: DataFile, data: DataSection) -> _Columns:
        """Those that the manifest names, else those of verl's schema. Raises DataError for one that isn't there."""
        mapped = data.columns
        truth = mapped.ground_truth or "reward_model.ground_truth"
        # A null that is written out says that no reward reads ground truths; the default null means verl's schema.
        optional = "ground_truth" in mapped.model_fields_set and mapped.ground_truth is None
        wanted = {
            "prompt": mapped.prompt or "prompt",
            "ground_truth": None if optional and not file.has(truth) else truth,
            "source": mapped.source,
            "id": mapped.id,
        }
        lacking = [f"{key} ({name})" for key, name in wanted.items() if name and not file.has(name)]
        if lacking:
            options = " and ".join(f"data.columns.{entry.split(' ')[0]}" for entry in lacking)
            raise DataError(
                f"{file.path} has no column for {', '.join(lacking)}; its columns are: {', '.join(file.columns)}. "
                f"Name the right one with {options}"
                + (" (or null, where no reward reads a ground truth)" if "ground_truth" in options else "")
            )
        source = mapped.source or ("data_source" if file.has("data_source") else None)
        return cls(wanted["prompt"] or "", wanted["ground_truth"], source, mapped.id, data.source or "")

    def draft(self, row: Row, template: Template) -> _Draft:
        """What the row asks. Raises DataError, without the location, where it can't be used."""
        prompt = reach(row.values, self.prompt)
        if prompt is MISSING or prompt is None:
            raise DataError(f"the prompt ({self.prompt}) is null or missing")
        content = template.content(prompt)
        truth = reach(row.values, self.ground_truth) if self.ground_truth else None
        if self.ground_truth and (truth is MISSING or truth is None or truth != truth):  # NaN is pandas' null
            raise DataError(f"the ground truth ({self.ground_truth}) is null or missing")
        source = reach(row.values, self.source) if self.source else None
        source = self.default_source if source is None or source is MISSING else source
        if not isinstance(source, str):
            raise DataError(f"the source ({self.source}) is {source!r}; it must be a string")
        used = {self.prompt, self.ground_truth, self.source, self.id}
        extra = {name: value for name, value in row.values.items() if name not in used}
        return _Draft(self._id(row, source, prompt), content, truth, source, extra, row.location)

    def _id(self, row: Row, source: str, prompt: Any) -> str:
        if self.id is None:
            return stable_prompt_id(source, prompt)
        value = reach(row.values, self.id)
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            shown = "null" if value is MISSING or value is None else repr(value)
            raise DataError(f"the id ({self.id}) is {shown}; it must be a string or an integer")
        return str(value)


def _judged(
    drafts: Sequence[_Draft], data: DataSection, split: Split, template: Template
) -> tuple[list[Prompt], PromptReport]:
    """Tokenise and apply ``data.overlong_prompts`` to what the model would read, chat template included."""
    limit, policy = data.max_prompt_tokens, data.overlong_prompts
    prompts: list[Prompt] = []
    refused, broken = _Faults(), _Faults()
    dropped = truncated = longest = 0
    for draft in drafts:
        content = draft.content
        try:
            tokens = template.encode(content)
            length = len(tokens)
            longest = max(longest, length)
            if not length:
                raise DataError("the prompt has no tokens")
            if length > limit and policy.startswith("truncate"):
                content, tokens = template.cut(content, limit, "left" if policy == "truncate_left" else "right")
                truncated += 1
        except DataError as error:
            broken.add(draft.location, error)
            continue
        if len(tokens) > limit:
            if policy == "error":
                refused.add(draft.location, f"{length:,} tokens")
            dropped += 1
            continue
        prompts.append(_prompt(draft, content, tokens))
    broken.check(split, "mend them or leave them out")
    refused.check(
        split,
        f"longer than data.max_prompt_tokens ({limit:,}), chat template included (the longest has {longest:,}); raise "
        "the limit, or set data.overlong_prompts to drop, truncate_left or truncate_right",
    )
    sources = Counter(prompt.source for prompt in prompts)
    return prompts, PromptReport(split, len(drafts), dropped, truncated, longest, limit, dict(sources))


def _prompt(draft: _Draft, content: Content, tokens: Any) -> Prompt:
    tokens.flags.writeable = False
    return Prompt(
        id=draft.id,
        text=text_of(content),
        tokens=tokens,
        ground_truth=draft.ground_truth,
        source=draft.source,
        messages=() if isinstance(content, str) else content,
        extra=draft.extra,
        location=draft.location,
    )
