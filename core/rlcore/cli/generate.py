"""``rlcore generate``: a model's answers to a few prompts."""

from __future__ import annotations

import json
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
    from rlcore.manifest.schema import ModelSection
    from rlcore.torch.tokenizer import load_tokenizer

    section = ModelSection.model_validate({"path": str(model.resolve()), "dtype": _dtype(model)})
    tokenizer = load_tokenizer(section)
    use_chat = tokenizer.has_chat_template if chat is None else chat
    tokens = [_encode(text, tokenizer, use_chat, system) for text in prompt]
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature)
    for answer in _answer(section, tokenizer, engine, tokens, sampling, seed):
        print(answer)


def _dtype(model: Path) -> str:
    """The dtype that the folder's config names, if models run in it, else bfloat16."""
    from rlcore.errors import ModelError

    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"{model} has no config.json, so it holds no model; name a folder that `rlcore export` wrote"
        ) from None
    except ValueError as error:
        raise ModelError(f"{model / 'config.json'} is no JSON: {error}") from error
    dtype = config.get("dtype", config.get("torch_dtype"))
    return dtype if dtype in ("bfloat16", "float32") else "bfloat16"


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
    from rlcore.plugins.interfaces import RolloutContext, RolloutEngine
    from rlcore.plugins.loading import build
    from rlcore.torch.local_model import LocalModel

    device = "cuda" if torch.cuda.is_available() else "cpu"
    requests = [Request(str(i), str(i), tokens, sampling, seed + i) for i, tokens in enumerate(prompts)]
    longest = max(len(tokens) for tokens in prompts) + sampling.max_tokens
    context = RolloutContext(section, tokenizer, longest, device, seed)
    rollout: RolloutEngine = build(PluginRef("rollout", engine), context)
    try:
        rollout.receive_weights(LocalModel(section, device), version=0)
        rollout.submit(requests)
        answers: dict[str, str] = {}
        while len(answers) < len(requests):
            answers |= {done.request_id: tokenizer.decode(done.tokens) for done in rollout.poll(1.0)}
    finally:
        rollout.close()
    return [answers[request.id] for request in requests]
