"""Makes what the checks need where no hub can be reached: a model of a known shape with random weights, and problems.

    python ray_jobs/validate/random_model.py qwen3-1.7b "$RUN/model" --problems "$RUN/train.jsonl"

The tokenizer has as many entries as Qwen's. The model writes noise: speed, memory and agreement of log-probs are those
of a real one; rewards, and so advantages, are 0 but for length penalties.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config

from meds_openrlhf.placement.model_shape import ModelShape

VOCABULARY = 150_000  # of the tokenizer
SHAPES = {
    "tiny": ModelShape(2, 128, 256, 4, 2, 32, 151_936, tied=True, attention_bias=True),
    "qwen2.5-0.5b": ModelShape(24, 896, 4864, 14, 2, 64, 151_936, tied=True, attention_bias=True),
    "qwen3-1.7b": ModelShape(28, 2048, 6144, 16, 8, 128, 151_936, tied=True, head_norms=True),
    "qwen2.5-math-7b": ModelShape(28, 3584, 18944, 28, 4, 128, 152_064, attention_bias=True),
}


def config_of(shape: ModelShape) -> PreTrainedConfig:
    """Return the Hugging Face configuration of a shape."""
    kind = Qwen3Config if shape.head_norms else Qwen2Config
    config: PreTrainedConfig = kind(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=32_768,
    )
    return config


def large_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-pair tokenizer with about as many entries as Qwen's."""
    letters = [chr(number) for number in range(33, 127)]
    pairs = [a + b for a, b in product(letters, letters)]
    quads = [pairs[i] + pairs[j] for i, j in product(range(400), range(400))]
    words = [*letters, " ", *pairs, *quads][: VOCABULARY - 1]
    merges = [(word[: len(word) // 2], word[len(word) // 2 :]) for word in words if len(word) > 1]
    backend = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<eos>")


def main() -> None:
    """Write the model's folder, and the problems if they are wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path, help="of the model; an existing model is kept")
    parser.add_argument("--problems", type=Path, metavar="FILE", help="write 4,096 problems here, as meds data prepare")
    arguments = parser.parse_args()
    if not (arguments.folder / "config.json").exists():
        device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(0)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config_of(SHAPES[arguments.shape]), dtype=torch.bfloat16)
        model.save_pretrained(arguments.folder)
        large_tokenizer().save_pretrained(arguments.folder)
        print(f"{arguments.folder}: {model.num_parameters() / 1e9:.2f} B parameters, random")
    if arguments.problems is not None:
        rows = [
            {"id": f"sum-{number}", "prompt": f"What is {number} + {2 * number + 7}? ", "answer": str(3 * number + 7)}
            for number in range(4096)
        ]
        arguments.problems.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
