"""``rlcore generate``: a model's answers to a few prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rlcore.data.sample import Sampling, Tokens
    from rlcore.data.tokenizer import Tokenizer
    from rlcore.manifest.schema import ModelSection

app = typer.Typer()


@app.command()
def generate(
    model: Annotated[Path, typer.Argument(metavar="MODEL_FOLDER", help="A Hugging Face folder, as export writes it.")],
    prompt: Annotated[list[str], typer.Option(help="What to answer; may be given several times.")],
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat", help="Use the chat template; left out, where there is one.", show_default=False
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system message before the prompt.")] = None,
    engine: Annotated[str, typer.Option(help="Rollout engine to generate with.")] = "hf",
) -> None:
    """Answer prompts with a model folder. Only the answers go to standard output."""
    from rlcore.data.sample import Sampling
    from rlcore.manifest.memory import context_tokens
    from rlcore.runtime.standalone import model_section
    from rlcore.torch.tokenizer import load_tokenizer

    section = model_section(model)
    tokenizer = load_tokenizer(section)
    use_chat = tokenizer.has_chat_template if chat is None else chat
    tokens = [_encode(text, tokenizer, use_chat, system) for text in prompt]
    made_for, longest = context_tokens(model), max(map(len, tokens)) + max_tokens
    if made_for is not None and longest > made_for:
        typer.echo(f"warning: up to {longest:,} tokens; the model was made for {made_for:,}", err=True)
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature)
    for answer in _answer(section, tokenizer, engine, tokens, sampling, seed):
        print(answer)


def _encode(text: str, tokenizer: Tokenizer, chat: bool, system: str | None) -> Tokens:
    from rlcore.errors import DataError

    if not chat:
        if system is not None:
            raise DataError("--system needs a chat template: leave --no-chat out, or put its text into --prompt")
        return tokenizer.encode_text(text)
    messages = [{"role": "system", "content": system}] if system is not None else []
    return tokenizer.encode_chat([*messages, {"role": "user", "content": text}], {})


def _answer(
    section: ModelSection, tokenizer: Tokenizer, engine: str, prompts: list[Tokens], sampling: Sampling, seed: int
) -> list[str]:
    """The answers in the order of the prompts, through the rollout engine that a run would use."""
    import torch

    from rlcore.data.sample import Request
    from rlcore.plugins.config import PluginRef
    from rlcore.runtime.standalone import standalone_engine

    requests = [Request(str(i), str(i), tokens, sampling, seed + i) for i, tokens in enumerate(prompts)]
    longest = max(len(tokens) for tokens in prompts) + sampling.max_tokens
    device = "cuda" if torch.cuda.is_available() else "cpu"
    answers: dict[str, str] = {}
    ref = PluginRef("rollout", engine)
    with standalone_engine(section, tokenizer, ref, max_tokens=longest, seed=seed, device=device) as rollout:
        rollout.submit(requests)
        while len(answers) < len(requests):
            answers |= {done.request_id: tokenizer.decode(done.tokens) for done in rollout.poll(1.0)}
    return [answers[request.id] for request in requests]
