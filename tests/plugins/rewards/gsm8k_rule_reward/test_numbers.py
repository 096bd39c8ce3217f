import time
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlcore_gsm8k_rule_reward.numbers import first_number, last_number, number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18", "18"),
        ("18.", "18"),
        ("18.0", "18"),
        ("018", "18"),
        ("+18", "18"),
        ("$18", "18"),
        (r"\$18", "18"),
        ("$ 18", "18"),
        ("€18", "18"),
        ("**18**", "18"),
        (r"\boxed{18}", "18"),
        ("18 eggs", "18"),
        ("18kg", "18"),
        ("50%", "50"),
        ("0.50", "0.5"),
        (".5", "0.5"),
        ("it is ...5", "5"),
        ("114,200", "114200"),
        ("114{,}200", "114200"),
        (r"114,\!200", "114200"),
        ("$1,234.00.", "1234"),
        ("-3", "-3"),
        ("\u22125", "-5"),
        ("\u20135", "-5"),
        ("-$50", "-50"),
        ("$-50", "-50"),
        (r"-\$50", "-50"),
        ("=-3", "-3"),
        ("(-3)", "-3"),
        (r"\boxed{-3}", "-3"),
        ("\u7b54\u6848\u662f-5", "-5"),  # Chinese has no space before a number
        ("-0.00", "0"),
        ("- 5", "5"),
        ("F-16", "16"),
        ("9007199254740993", "9007199254740993"),
        ("1" * 5000, "1" * 5000),
    ],
)
def test_one_number(text, value):
    assert first_number(text) == last_number(text) == value


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("1,8", "1", "8"),
        ("-1,8", "-1", "8"),
        ("1234,567", "1234", "567"),
        ("0,123", "0", "123"),
        ("1,234,5678", "1", "5678"),
        ("1,234,567", "1234567", "1234567"),
        ("1,8.5", "1", "8.5"),
        ("3,1415x926", "3", "926"),
        ("1.2.3", "1.2", "3"),
        ("16-3", "16", "3"),
        ("(4)-3", "4", "3"),
        ("50%-5", "50", "5"),
        ("5\u201310 minutes", "5", "10"),
        ("1/2", "1", "2"),
        ("3, 4", "3", "4"),
        ("72. Then 5.", "72", "5"),
    ],
)
def test_several_numbers(text, first, last):
    assert (first_number(text), last_number(text)) == (first, last)


@pytest.mark.parametrize("text", ["", " ", "a, b.", ",", ".", "-", "$", "\u0665", "\uff15", "\ud800", "NaN", "\u221e"])
def test_no_number(text):
    assert first_number(text) is last_number(text) is None


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4), st.booleans())
def test_finds_every_decimal_by_its_value(value, grouped):
    text = format(value, ",f" if grouped else "f")
    found = first_number(f"so we get {text}.")
    assert found is not None
    assert Decimal(found) == value
    assert found == last_number(f"1 + 1 gives {text}") == number(text)


@given(st.text())
def test_any_text_is_read(text):
    for found in (first_number(text), last_number(text)):
        assert found is None or Decimal(found).is_finite()


@given(st.text(alphabet="0123456789,.-$#\\!{} %€\u2212xy=", max_size=60))
def test_last_number_is_the_last_that_repeated_search_finds(text):
    assert last_number(f"7 = {text}") == (last_number(text) or "7")
    shorter = next((text[:i] for i in range(len(text), -1, -1) if text[:i][-1:].isdigit()), "")
    assert last_number(text) == last_number(shorter)


@given(st.text(alphabet="0123456789,.-$#\\!{} %\u2212x", max_size=60))
def test_numbers_are_canonical(text):
    for found in (first_number(text), last_number(text)):
        if found is not None:
            assert number(found) == found
            assert found == format(Decimal(found).normalize(), "f") or len(found) > 28


@pytest.mark.parametrize(
    "unit",
    ["9", "1,", "1,234", "-", "$ ", ".", "1.", ".1", r",\!", "1{,}", "-$", "####", "x", "1,1,1.1-$1 ", "0"],
)
def test_time_grows_with_length_only(unit):
    def seconds(repeats: int) -> float:
        text = unit * repeats
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            first_number(text), last_number(text)
            best = min(best, time.perf_counter() - start)
        return best

    short, long = seconds(2_000), seconds(64_000)
    assert long < 32 * 10 * short + 0.05, f"32 times the text took {long / short:.0f} times as long"


@pytest.mark.parametrize(
    ("gold", "value"),
    [
        ("18", "18"),
        (" 18\n", "18"),
        (18, "18"),
        (18.0, "18"),
        (["18"], "18"),
        ([18], "18"),
        (("18",), "18"),
        ("114,200", "114200"),
        ("$1,234.50", "1234.5"),
        ("50%", "50"),
        ("-5", "-5"),
        ("\u22125", "-5"),
        (-5, "-5"),
        (0.1, "0.1"),
        (1e22, "10000000000000000000000"),
        (2**53 + 1, "9007199254740993"),
        (Decimal("18.00"), "18"),
        (np.int64(18), "18"),
        (np.float64(18), "18"),
        (np.array(["18"], dtype=object), "18"),
    ],
)
def test_ground_truth(gold, value):
    assert number(gold) == value


@pytest.mark.parametrize(
    "gold",
    [
        *(None, True, [], ["18", "19"], {}, b"18", float("nan"), float("inf"), Decimal("NaN")),
        *("", "abc", "####", "x 18", "18 eggs", "18 19", "1,8", "1e3", "1/2"),
    ],
)
def test_what_is_no_ground_truth(gold):
    assert number(gold) is None
