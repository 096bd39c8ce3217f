"""Careless and hostile input through the command line.

Each is refused with exit code 2 and a message that says where, what and what to do, before a model is loaded and with
nothing written.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rlcore.cli import main

Refused = Callable[..., str]


def content(folder: Path) -> dict[Path, bytes | None]:
    """Everything under a folder."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture
def refused(task: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """``refused("--set", "a=b", section={...})`` is what ``rlcore run`` says of the manifest with these changes."""

    def never(*_: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("rlcore.runtime.launch.start_workers", never)
    monkeypatch.setattr("rlcore.plugins.local.sys.dont_write_bytecode", True)

    def run(*arguments: str, text: str | bytes | None = None, **sections: Any) -> str:
        path = task.write(**sections)
        if text is not None:
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        before = content(task.folder)
        with pytest.raises(SystemExit) as stop:
            main(["run", str(path), *arguments])
        out, err = capsys.readouterr()
        assert stop.value.code == 2, err
        assert out == ""
        assert content(task.folder) == before
        return err.replace(f"{task.folder}/", "")

    return run


MANIFESTS: list[tuple[str, Mapping[str, Any], str]] = [
    ("unknown key", {"trainer": {"lrr": 1}}, r"run\.yaml:\d+:3: trainer\.lrr: unknown key 'lrr'; did you mean 'lr'\?"),
    ("wrong type", {"trainer": {"lr": "ten"}}, r"run\.yaml:\d+:7: trainer\.lr: must be a number above 0, got 'ten'"),
    (
        "unknown plugin",
        {"trainer": {"use": "fdsp"}},
        r"run\.yaml:\d+:8: trainer\.use: no trainer plugin 'fdsp' is installed; did you mean 'fsdp'\?",
    ),
    (
        "known plugin that is not installed",
        {"rollout": {"use": "vlm"}},
        r"no rollout plugin 'vlm' is installed; did you mean 'vllm'\? planned, not available yet; installed: hf",
    ),
    (
        "missing file",
        {"data": {"train": "no.parquet"}},
        r"run\.yaml:\d+:10: data\.train: no such file: no\.parquet",
    ),
    (
        "columns",
        {"data": {"columns": {"prompt": "q", "ground_truth": "a"}}},
        r"train\.parquet has no column for prompt \(q\), ground_truth \(a\); its columns are: question, answer\. "
        r"Name the right one with data\.columns\.prompt and data\.columns\.ground_truth",
    ),
    (
        "every prompt too long",
        {"data": {"max_prompt_tokens": 3, "overlong_prompts": "drop"}},
        r"data\.train: all 12 prompts are longer than data\.max_prompt_tokens \(3\); the longest has \d+ tokens",
    ),
    (
        "fewer prompts than a step needs",
        {"data": {"prompts_per_step": 13}},
        r"there are 12 prompts, fewer than the 13 that one step needs: lower data\.prompts_per_step, or set "
        r"data\.last_batch to short",
    ),
    (
        "one sample with grpo",
        {"rollout": {"samples_per_prompt": 1}},
        r"rollout\.samples_per_prompt: algorithm grpo compares the samples of a prompt.*set 2 or more",
    ),
    (
        "temperature 0",
        {"rollout": {"temperature": 0}},
        r"rollout\.temperature: must be a number above 0, got 0; greedy decoding \(0\) is for eval\.temperature only",
    ),
    ("decay of 1", {"trainer": {"betas": [0.9, 1]}}, r"trainer\.betas\.1: must be a number of at least 0 and below 1"),
    ("empty stop", {"rollout": {"stop": [""]}}, r"rollout\.stop\.0: must be text that is not empty, got ''"),
    ("a tracker twice", {"run": {"trackers": ["jsonl", "jsonl"]}}, r"trackers\.1: 'jsonl' is there already, as item 0"),
    ("a file twice", {"data": {"train": ["train.parquet", "./train.parquet"]}}, r"data\.train\.1: .*there already"),
    ("a name that is a path", {"name": "../x"}, r"name: must be text that matches .*, got '\.\./x'"),
    ("home of nobody", {"data": {"train": "~no-one/x.parquet"}}, r"data\.train: '~no-one/x\.parquet' is no path here"),
    ("too long a path", {"data": {"train": "x" * 300}}, r"data\.train: 'x+\.\.\.' is no path here: File name too long"),
    (
        "runs in a file",
        {"run": {"folder": "train.parquet"}},
        r"folder train\.parquet/tiny can't be used: Not a directory",
    ),
    ("too long a name", {"name": "x" * 300}, r"name: must be text that matches .*\{0,199\}"),
]


@pytest.mark.parametrize(("sections", "message"), [case[1:] for case in MANIFESTS], ids=[case[0] for case in MANIFESTS])
def test_manifests(refused: Refused, sections: Mapping[str, Any], message: str) -> None:
    assert re.search(message, refused(**sections))


TEXTS: list[tuple[str, str | bytes, str]] = [
    (
        "duplicate key",
        "rlcore: 1\nname: a\nname: b\n",
        r"run\.yaml:3:1: the key 'name' is given twice; first at .*:2:1",
    ),
    ("not UTF-8", b"name: \xe9\n", r"run\.yaml:1:7: not UTF-8 text \(byte 0xe9\)"),
    ("NUL in text", 'rlcore: 1\nname: "a\\0b"\n', r"run\.yaml:2:7: 'a\\x00b' can't be read as str"),
    ("depth", "a: " + "[" * 60 + "]" * 60, r"run\.yaml:1:54: nested more than 50 deep"),
    ("depth that recursion can't take", "[" * 100_000, r"run\.yaml:1:1: nested too deeply"),
    ("aliases that multiply", "a: &a [x, x]\nb: &b [" + "*a, " * 10_000 + "]\n", "aliases that multiply"),
    ("an alias of itself", "a: &a [*a]", r"run\.yaml:1:4: an alias inside the value that it stands for"),
    ("megabytes", "# " + "x" * 1_000_000, r"run\.yaml:1:1: more than 1,000,000 bytes; is this a manifest\?"),
    ("extends of NUL", 'extends: "a\\0"', "can't be read as str"),
    (
        "extends of too long a name",
        f"extends: {'x' * 300}",
        r"run\.yaml:1:10: extends: .* is no path here: File name too long",
    ),
    ("extends itself", "extends: run.yaml", r"run\.yaml:1:10: extends: extends in a circle: run\.yaml → run\.yaml"),
    ("code in a tag", "a: !!python/object/apply:os.system [x]", r"run\.yaml:1:4: the tag .* is not allowed"),
]


@pytest.mark.parametrize(("text", "message"), [case[1:] for case in TEXTS], ids=[case[0] for case in TEXTS])
def test_texts(refused: Refused, text: str | bytes, message: str) -> None:
    assert re.search(message, refused(text=text))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("=", "--set =: write --set KEY=VALUE, such as trainer.lr=5e-7"),
        ("a", "--set a: write --set KEY=VALUE"),
        ("a.b.c.d=1", "--set a.b.c.d: a: unknown key 'a'"),
        ("rewards.x=", "--set rewards.x: must be a plugin's name or a mapping, got null"),
        ("a" + ".a" * 5000 + "=1", "write --set KEY=VALUE"),
        ("trainer.lr=.nan", "--set trainer.lr: must be a number that is finite, got .nan"),
        ("run.seed=1e400", "--set run.seed: must be a whole number, got .inf"),
        ("run.trackers.7=jsonl", "run.trackers is a list of 1; name an item by its number from 0"),
    ],
)
def test_overrides(refused: Refused, override: str, message: str) -> None:
    assert message in refused("--set", override)


CONFIG = """
from rlcore import PluginConfig, hookimpl
class C(PluginConfig):
    {}
@hookimpl
def rlcore_reward(config: C): return lambda sample: 0.0
"""
PLUGINS = [
    ("import nothing_of_that_name", r"reward\.py can't be imported: ModuleNotFoundError: .* \(at reward\.py:1\)"),
    ("def (", r"reward\.py can't be imported: SyntaxError: invalid syntax \(at reward\.py:1\)"),
    ("import sys; sys.exit(0)", r"reward\.py can't be imported: SystemExit: 0"),
    (
        "from rlcore import hookimpl\n@hookimpl\ndef rlcore_rewrad(): ...",
        r"unknown hook 'rlcore_rewrad'.*a reward implements rlcore_reward\(config, context\) under @hookimpl",
    ),
    (
        "from rlcore import hookimpl\n@hookimpl\ndef rlcore_reward(): return None",
        r"rlcore_reward returned None; it must return a function",
    ),
    (
        "from rlcore import hookimpl\n@hookimpl\ndef rlcore_reward(): raise SystemExit(0)",
        r"reward\.py failed in rlcore_reward: SystemExit: 0 \(at reward\.py:3\)",
    ),
    (
        CONFIG.format("def needs(self): return 'batch:values'"),
        r"failed: TypeError.*'batch:values', which is no set of texts",
    ),
    (CONFIG.format("def needs(self): return {1}"), r"failed: TypeError\(.it returned \{1\}, which is no set of texts"),
    (CONFIG.format("x: bytes = b'\\xff'"), r"the options of reward/reward\.py can't be written as JSON: .*utf-8"),
    (CONFIG.format("weight: int = 1"), r"option 'weight' of C is the core's in a reward section; rename it"),
]


@pytest.mark.parametrize(("source", "message"), PLUGINS)
def test_plugins(task: Any, refused: Refused, source: str, message: str) -> None:
    (task.folder / "reward.py").write_text(source)
    assert re.search(message, refused())


def test_two_distributions_with_one_name(task: Any, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mine", "yours"):
        site = task.folder / "sites" / name
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[rlcore.rewards]\ndouble = {name}_plugin\n")
        monkeypatch.syspath_prepend(str(site))
    err = refused(rewards={"letters": {"use": "double"}})
    assert "rewards.letters.use: reward/double is claimed by mine 1.0 (mine_plugin) and yours 1.0" in err
    assert "uninstall all but one of them" in err


TRUST: list[Mapping[str, Any]] = [
    {"rollout": {"trust_remote_code": True}},
    {"trainer": {"trust-remote-code": True}},
    {"data": {"chat_template_kwargs": {"trustRemoteCode": True}}},
    {"data": {"chat_template_kwargs": {"inside": {"Trust_Remote.Code": True}}}},
    {"data": {"chat_template_kwargs": {"arguments": ["--trust-remote-code"]}}},
    {"data": {"chat_template_kwargs": {"arguments": "--fast --trust_remote_code=true"}}},
    {"rewards": {"letters": {"use": "./reward.py", "trust_remote_code": True}}},
    {"reference": {"trust_remote_code": True}},
]


@pytest.mark.parametrize("sections", TRUST, ids=str)
def test_trust_in_remote_code_smuggled_in(refused: Refused, sections: Mapping[str, Any]) -> None:
    assert "code that comes with a model is allowed by model.trust_remote_code alone; remove it" in refused(**sections)


def test_null_ground_truth(task: Any, refused: Refused) -> None:
    table = pa.table({"question": ["a", "b", "c", "d", "e"], "answer": ["1", None, "3", "4", "5"]})
    pq.write_table(table, task.folder / "train.parquet")
    assert "train.parquet row 2: the ground truth (answer) is null or missing" in refused()


def test_golds_of_other_types_in_other_files_are_fine(task: Any, refused: Refused) -> None:
    table = pa.table({"question": ["a", "b"], "answer": [1, 2]})
    pq.write_table(table, task.folder / "numbers.parquet")
    # It is refused for its size, which is judged after every row was read.
    err = refused(data={"train": ["train.parquet", "numbers.parquet"], "prompts_per_step": 15})
    assert "there are 14 prompts, fewer than the 15" in err


LINES = [
    ('{"question": "a", "answer": "\\ud800"}', r"t\.jsonl line 1: not JSON: .*surrogates not allowed"),
    ('{"question": "a", "answer": ' + "[" * 100_000, r"t\.jsonl line 1: not JSON: maximum recursion depth"),
    (
        '{"question": [], "answer": 1}',
        r"line 1: the prompt must be a string or a list of \{role, content\}, not list \[\]",
    ),
    (
        '{"question": [{"role": "user", "content": [{"type": "image", "image": "x.png"}]}], "answer": 1}',
        r"line 1: message 1 \(user\) has content .*; it must be text, or a list of texts",
    ),
    (
        '{"question": [{"role": "user", "content": [{"type": "text", "text": 5}]}], "answer": 1}',
        r"line 1: message 1 \(user\) has content .*; it must be text, or a list of texts",
    ),
]


@pytest.mark.parametrize(("line", "message"), LINES, ids=range(len(LINES)))
def test_lines_of_data(task: Any, refused: Refused, line: str, message: str) -> None:
    (task.folder / "t.jsonl").write_text(line)
    assert re.search(message, refused(data={"train": "t.jsonl", "prompts_per_step": 1}))


def test_two_columns_of_one_name(task: Any, refused: Refused) -> None:
    columns = pa.Table.from_arrays([pa.array(["a"])] * 3, names=["question", "answer", "answer"])
    pq.write_table(columns, task.folder / "train.parquet")
    assert "train.parquet has more than one column 'answer'; rename them" in refused()


def test_a_tokenizer_without_chat_template(task: Any, tiny_model: Path, refused: Refused) -> None:
    bare = shutil.copytree(tiny_model, task.folder / "bare")
    for file in bare.glob("chat_template*"):
        file.unlink()
    config = json.loads((bare / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (bare / "tokenizer_config.json").write_text(json.dumps(config))
    assert "the tokenizer has no chat template" in (err := refused(model={"path": "./bare"}))
    assert "set data.template: none" in err


def test_folders_in_the_way(task: Any, refused: Refused) -> None:
    runs = task.folder / "runs"
    runs.mkdir()
    (runs / "tiny").symlink_to(task.folder / "nowhere")
    assert "runs/tiny is in the way of the run's folder: it is no folder; give the run another name" in refused()
    (runs / "tiny").unlink()
    (runs / "tiny").mkdir()
    (runs / "tiny" / "thesis.txt").write_text("years of work")
    for arguments in ((), ("--overwrite",)):
        assert "holds something that is no run (thesis.txt); give this run another name" in refused(*arguments)


def test_a_folder_with_a_manifest_of_ones_own_is_no_run(task: Any, refused: Refused) -> None:
    own = task.folder / "runs" / "tiny"
    own.mkdir(parents=True)
    shutil.copy(task.write(), own / "manifest.yaml")
    assert "holds something that is no run (manifest.yaml)" in refused("--overwrite")
    assert "there is no run to resume in runs/tiny: it has no environment.json" in refused("--resume")


def test_arguments_of_run(refused: Refused) -> None:
    assert "--resume goes on with a run and --overwrite" in refused("--resume", "--overwrite")
    assert "--resume-from names no step" in refused("--resume-from", "")
    assert "there is no run to resume in runs/tiny: it has no manifest.yaml" in refused("--resume-from", "nonsense")
