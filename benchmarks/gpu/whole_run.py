"""Three GRPO steps with ``rlcore run`` on a Qwen3 of 0.6B parameters: fsdp trains, hf generates, both on one GPU.

    python benchmarks/gpu/whole_run.py [--tiny] [--folder DIR]

Weights are random, so only times, speeds and the agreement of engine and trainer mean anything. ``--tiny`` tries the
script on a CPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml
from packed_forward import SHAPE, TINY
from rlcore.testing.tiny import write_byte_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

PROMPTS = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder / "model", TINY if arguments.tiny else SHAPE)
    manifest = write_manifest(folder)
    subprocess.run([sys.executable, "-m", "rlcore", "run", str(manifest)], check=True)
    for line in (folder / "runs/whole-run/metrics.jsonl").read_text().splitlines():
        metrics = json.loads(line)
        tokens = 64 * (metrics["prompt/tokens_mean"] + metrics["response/tokens_mean"])
        generate, update = metrics["time/generate_seconds"], metrics["time/update_seconds"]
        print(
            f"step {metrics['step']}: {metrics['time/step_seconds']:.2f} s, of which generate {generate:.2f} s "
            f"({metrics['speed/generated_tokens_per_second']:,.0f} tok/s) and update {update:.2f} s "
            f"({tokens / update:,.0f} tok/s, prompts included)"
        )


def write_model(folder: Path, shape: dict[str, Any]) -> None:
    tokenizer = write_byte_tokenizer(folder)
    config = Qwen3Config(
        **shape,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def write_manifest(folder: Path) -> Path:
    rows = [{"question": f"Problem {i}: " + "how many apples are left? " * 4, "answer": str(i)} for i in range(PROMPTS)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "reward.py").write_text(
        "from rlcore import hookimpl\n\n@hookimpl\ndef rlcore_reward():\n"
        "    return lambda sample: len(set(sample.response)) / 100\n"
    )
    manifest = {
        "rlcore": 1,
        "name": "whole-run",
        "model": {"path": "./model"},
        "data": {
            "train": "train.jsonl",
            "columns": {"prompt": "question", "ground_truth": "answer"},
            "source": "apples",
            "prompts_per_step": 8,
            "max_prompt_tokens": 256,
            "max_response_tokens": 128,
        },
        "trainer": {"use": "fsdp", "tokens_per_micro_batch": 32768},
        "rollout": {"use": "hf", "samples_per_prompt": 8, "ignore_eos": True},
        "algorithm": {"use": "grpo"},
        "rewards": {"variety": {"use": "./reward.py"}},
        "run": {"max_steps": 3, "trackers": ["console", "jsonl"]},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(manifest))
    return path


if __name__ == "__main__":
    main()
