"""Each loss keeps the contract of plugins; its options are on the page of losses."""

from __future__ import annotations

from pathlib import Path

import pytest
from rlcore.plugins.loading import config_class
from rlcore.testing.contracts.plugin import PluginContract

PAGE = (Path(__file__).parents[4] / "docs/losses.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["gspo", "cispo", "gmpo", "sapo", "clip-cov", "kl-cov", "reinforce"])
class TestLosses:
    def test_contract(self, name: str) -> None:
        contract = type("Contract", (PluginContract,), {"kind": "loss", "plugin": name})()
        contract.test_options_are_documented()
        contract.test_ref_crosses_processes()
        contract.test_module_imports_nothing_heavy()

    def test_page(self, name: str) -> None:
        _, _, section = PAGE.partition(f"### `{name}`\n")
        section = section.partition("\n### ")[0]
        for option, field in config_class("loss", name).model_fields.items():
            assert f"`{option}`" in section
            number = "null" if field.default is None else f"{field.default:.10f}".rstrip("0").rstrip(".")
            (row,) = (
                line for line in section.splitlines() if line.startswith("|") and f"`{option}`" in line.split("|")[1]
            )
            assert number in row
