"""Ids and seeds are part of the format: written-out values, made with coreutils' b2sum, hold them still."""

from __future__ import annotations

from itertools import product

from rlcore.data.ids import sample_seed, stable_prompt_id


def test_values_by_another_implementation():
    # printf '["gsm8k","What is 1+1?"]' | b2sum -l 64
    assert stable_prompt_id("gsm8k", "What is 1+1?") == "79a1c30e2d85ab0a"
    # printf '["gsm8k",[{"content":"hi","role":"user"}]]' | b2sum -l 64
    assert stable_prompt_id("gsm8k", [{"role": "user", "content": "hi"}]) == "61dde8bebaa7c214"
    # printf '[7,"abc",1,2,0]' | b2sum -l 64, shifted right by one bit
    assert sample_seed(7, "abc", 1, 2, 0) == 0x6B8163D43EB5483E >> 1


def test_order_of_a_message_keys_does_not_matter():
    one, two = {"role": "user", "content": "hi"}, {"content": "hi", "role": "user"}
    assert stable_prompt_id("s", [one]) == stable_prompt_id("s", [two])


def test_source_and_prompt_are_kept_apart():
    assert stable_prompt_id("ab", "c") != stable_prompt_id("a", "bc")
    assert stable_prompt_id("a", "hi") != stable_prompt_id("a", [{"role": "user", "content": "hi"}])


def test_every_argument_changes_the_seed():
    seeds = {sample_seed(*values) for values in product((0, -1), ("a", "b"), (0, 1), (0, 1), (0, 1))}
    assert len(seeds) == 32
    assert all(0 <= seed < 2**63 for seed in seeds)
