"""The plugins of this repository keep the contracts that third parties are given."""

from typing import ClassVar

from rlcore.testing.contracts import AdvantageContract, RolloutContract, TrainBackendContract


class TestGrpo(AdvantageContract):
    plugin = "grpo"


class TestDrGrpo(AdvantageContract):
    plugin = "grpo"
    options: ClassVar = {"normalize": "none"}


class TestGrpoByTheSpreadOfTheBatch(AdvantageContract):
    plugin = "grpo"
    options: ClassVar = {"normalize": "batch"}
    whole_batch = True


class TestGrpoPassAtK(AdvantageContract):
    plugin = "grpo"
    options: ClassVar = {"variant": "pass-at-k"}


class TestRloo(AdvantageContract):
    plugin = "rloo"


class TestReinforcePlusPlus(AdvantageContract):
    plugin = "reinforce-plus-plus"
    options: ClassVar = {"gamma": 0.9}


class TestReinforcePlusPlusBaseline(AdvantageContract):
    plugin = "reinforce-plus-plus-baseline"
    whole_batch = True


class TestRemax(AdvantageContract):
    plugin = "remax"


class TestOpo(AdvantageContract):
    plugin = "opo"


class TestGpg(AdvantageContract):
    plugin = "gpg"
    whole_batch = True


class TestGdpo(AdvantageContract):
    plugin = "gdpo"
    whole_batch = True


class TestHfStream(RolloutContract):
    plugin = "hf"
    way = "stream"


class TestHfInPlace(RolloutContract):
    plugin = "hf"
    way = "in_place"
    tied = False


class TestHfFewRows(RolloutContract):
    plugin = "hf"
    tied = False
    options: ClassVar = {"max_rows": 2, "prefill_tokens": 8}


class TestFsdp(TrainBackendContract):
    plugin = "fsdp"


class TestPpo(AdvantageContract):
    plugin = "ppo"


class TestPpoRaw(AdvantageContract):
    plugin = "ppo"
    options: ClassVar = {"whiten": False, "truncation": "value", "gamma": 0.9}


class TestDapo(AdvantageContract):
    plugin = "dapo"


class TestDapoOverlong(AdvantageContract):
    plugin = "dapo"
    # Its responses have at most 7 of 8 tokens: shaped rewards of a group would differ where its rewards are equal.
    options: ClassVar = {"overlong_buffer_tokens": 1, "mask_truncated": True}


class TestDpo(AdvantageContract):
    plugin = "dpo"
