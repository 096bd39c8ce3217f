"""When a generation ends, and what it is said to have ended by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rlcore_hf.requests import ends_with_stop

EOS = (3, 50, 99, 140, 180, 200, 201, 202, 203, 204, 205, 206, 207, 208, 209, 210)


@pytest.fixture(scope="module")
def free(bench: Any, prompts: Any, request_of: Any, run: Any) -> dict[str, list[int]]:
    """What is generated where nothing ends it: the oracle for all that ends earlier, since draws are the same."""
    requests = [request_of(f"{i}/{s}", p, seed=s, max_tokens=30) for i, p in enumerate(prompts) for s in range(8)]
    return {name: c.tokens.tolist() for name, c in run(bench.engine(), requests).items()}


def test_any_eos_id_ends_it(bench: Any, prompts: Any, request_of: Any, run: Any, free: dict[str, list[int]]) -> None:
    """Up to the first EOS, which is kept; D23: one that comes first makes a completion of one token."""
    requests = [request_of(f"{i}/{s}", p, seed=s, max_tokens=30) for i, p in enumerate(prompts) for s in range(8)]
    done = run(bench.engine(eos=EOS), requests)
    lengths = set()
    for name, tokens in free.items():
        end = next((i for i, t in enumerate(tokens) if t in EOS), None)
        expected = tokens if end is None else tokens[: end + 1]
        assert done[name].tokens.tolist() == expected
        assert done[name].finish == ("length" if end is None else "stop")
        lengths.add(len(expected))
    assert {1, 30} < lengths
    assert {done[n].tokens[-1] for n in free if done[n].finish == "stop"} >= {3, 50}


def test_eos_exactly_at_the_limit_is_a_stop(
    bench: Any, prompts: Any, request_of: Any, run: Any, free: dict[str, list[int]]
) -> None:
    """D14; one token earlier it is cut off, and D13: no EOS is made up."""
    name, tokens = next((n, t) for n, t in free.items() if any(x in EOS for x in t[5:]) and not set(t[:5]) & set(EOS))
    end = next(i for i, t in enumerate(tokens) if t in EOS)
    row, seed = map(int, name.split("/"))
    for limit, finish in ((end + 1, "stop"), (end, "length"), (end + 2, "stop")):
        completion = run(bench.engine(eos=EOS), [request_of("x", prompts[row], seed=seed, max_tokens=limit)])["x"]
        assert (completion.tokens.tolist(), completion.finish) == (tokens[: min(limit, end + 1)], finish)


def test_ignore_eos(bench: Any, prompts: Any, request_of: Any, run: Any, free: dict[str, list[int]]) -> None:
    """Ends at the limit by length, whatever the last token is; beside requests that do stop."""
    at = {n: next(i for i, t in enumerate(tokens) if t in EOS) for n, tokens in free.items() if set(tokens) & set(EOS)}
    requests = []
    for name, end in at.items():
        row, seed = map(int, name.split("/"))
        requests.append(request_of(name, prompts[row], seed=seed, max_tokens=end + 1, ignore_eos=True))
        requests.append(request_of(f"{name}/stops", prompts[row], seed=seed, max_tokens=30))
    done = run(bench.engine(eos=EOS), requests)
    for name, end in at.items():
        assert (done[name].tokens.tolist(), done[name].finish) == (free[name][: end + 1], "length")
        assert done[f"{name}/stops"].finish == "stop"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens(temperature: float, bench: Any, prompts: Any, request_of: Any, run: Any) -> None:
    """No EOS among the first tokens, and one as soon as it is allowed: here nine tokens of ten are EOS."""
    eos = [i for i in range(261) if i % 10]
    requests = [
        request_of(f"{i}/{m}", p, temperature=temperature, seed=i, min_tokens=m, max_tokens=40)
        for i, p in enumerate(prompts)
        for m in (0, 1, 5)
    ]
    done = run(bench.engine(eos=eos), requests)
    for request in requests:
        tokens = done[request.id].tokens.tolist()
        least = request.sampling.min_tokens
        assert all(t % 10 == 0 for t in tokens[:least])
        assert len(tokens) > least
    assert any(len(done[r.id].tokens) == r.sampling.min_tokens + 1 for r in requests if r.sampling.min_tokens == 5)


def test_stop_strings_over_token_borders(
    bench: Any, prompts: Any, request_of: Any, run: Any, letters: Any, free: dict[str, list[int]]
) -> None:
    """Tokens are kept as sampled, up to the one that completes the string; the first of several counts."""
    requests, expected = [], {}
    for name, tokens in free.items():
        row, seed = map(int, name.split("/"))
        text = letters().decode(tokens)  # a letter a token
        stops = (text[9:12], text[20:22], "zzzzzz")
        end = min(text.find(s) + len(s) for s in stops[:2])
        requests.append(request_of(name, prompts[row], seed=seed, max_tokens=30, stop=stops))
        expected[name] = (tokens[:end], "stop")
        requests.append(request_of(f"{name}/none", prompts[row], seed=seed, max_tokens=30, stop=("zzzzzz",)))
        expected[f"{name}/none"] = (tokens, "length")
    done = run(bench.engine(max_rows=20), requests)
    assert {n: (c.tokens.tolist(), c.finish) for n, c in done.items()} == expected


def test_a_stop_string_at_the_limit_is_a_stop(
    bench: Any, prompts: Any, request_of: Any, run: Any, letters: Any, free: dict[str, list[int]]
) -> None:
    text = letters().decode(free["0/0"])
    end = text.find(text[9:12]) + 3
    request = request_of("x", prompts[0], seed=0, max_tokens=end, stop=(text[9:12],))
    assert run(bench.engine(), [request])["x"].finish == "stop"


def test_min_tokens_holds_stop_strings_back(
    bench: Any, prompts: Any, request_of: Any, run: Any, letters: Any, free: dict[str, list[int]]
) -> None:
    """One that was complete while it held does not end the generation afterwards."""
    text = letters().decode(free["2/1"])
    stop = text[3:5]
    least = text.find(stop) + 2
    later = text.find(stop, least - 1)
    request = request_of("x", prompts[2], seed=1, max_tokens=30, stop=(stop,), min_tokens=least)
    completion = run(bench.engine(), [request])["x"]
    assert len(completion.tokens) == (30 if later < 0 else later + 2)


def ends_at(tokens: list[int], stop: tuple[str, ...], tokenizer: Any) -> int | None:
    """After how many tokens the first stop is seen."""
    flat = np.array(tokens, np.int32)
    return next((n for n in range(1, len(flat) + 1) if ends_with_stop(flat[:n], stop, tokenizer)), None)


def test_stop_strings_of_several_bytes(bench: Any, load: Any) -> None:
    """A byte a token: a character of three bytes is there with its last byte and not before."""
    tokenizer = load(bench.section)
    tokens = tokenizer.encode_text("ab€€ c\n\nUser:").tolist()
    assert ends_at(tokens, ("€",), tokenizer) == 5
    assert ends_at(tokens, ("b€€",), tokenizer) == 8
    assert ends_at(tokens, ("\n\nUser:", "\n\n"), tokenizer) == 12
    assert ends_at(tokens, ("�",), tokenizer) in (3, None)
    assert ends_at(tokens, ("no",), tokenizer) is None


def test_stop_string_inside_a_token() -> None:
    """The token may say more before and after it."""

    class Words:
        def decode(self, tokens: Any) -> str:
            return "".join(["Hello", " wor", "ld. Qu", "estion: x"][t] for t in tokens)

    assert ends_at([0, 1, 2, 3], (". Q",), Words()) == 3
    assert ends_at([0, 1, 2, 3], ("Question:",), Words()) == 4
    assert ends_at([0, 1, 2, 3], ("lo",), Words()) == 1
    assert not ends_with_stop(np.array([0, 1]), ("lo",), Words())  # type: ignore[arg-type]


def test_stop_string_far_behind_many_tokens(letters: Any) -> None:
    """Only the end is looked at, however long the text."""
    tokens = [1] * 5000 + [2, 3]
    assert ends_with_stop(np.array(tokens), ("cd",), letters())
    assert not ends_with_stop(np.array([*tokens, 1]), ("cd",), letters())
