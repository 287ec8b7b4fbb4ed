"""Fingerprints of logged responses: one forward pass of the model over each, up to its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.schema import FeatureSettings
from meds_openrlhf.data.prompt_texts import CHAT_MARKER
from meds_openrlhf.dumps.formats import Rollout
from meds_openrlhf.features.answer import AnswerLocator
from meds_openrlhf.features.layout import padded_positions
from meds_openrlhf.features.recorder import LayerLogitRecorder
from meds_openrlhf.runtime.hub import can_be_reached

CHECKED = 64  # texts that the tokenizer is tried on


@dataclass(frozen=True)
class _Input:
    """The tokens of a prompt and of its response up to the answer, whose first token is ``target``."""

    row: int
    tokens: list[int]
    target: int

    @property
    def length(self) -> int:
        """The number of tokens."""
        return len(self.tokens)


class Fingerprints:
    """Layer logits by the model in the folder or on the hub ``name``; on the GPU, if there is one, in bfloat16.

    ``batch_tokens``: tokens in a forward pass, with padding. Raises ConfigError if the model cannot be loaded.
    """

    def __init__(self, name: str, features: FeatureSettings, batch_tokens: int) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar

        device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        disable_progress_bar()  # of loading
        unreachable = not can_be_reached(name)  # the hub's client would retry for minutes
        try:
            options = {"local_files_only": unreachable, "trust_remote_code": True}  # as in training
            self._tokenizer: Any = AutoTokenizer.from_pretrained(name, **options)
            model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **options)
        except (OSError, ValueError) as error:
            if unreachable:
                hint = "is not a folder here, and the hub cannot be reached. Name the folder of a model."
                raise ConfigError("--model", name, hint) from error
            hint = f"cannot be loaded ({str(error).strip().splitlines()[0]}). Name the folder of a model, or none."
            raise ConfigError("--model", name, hint) from error
        self.config = model.config
        self._model = model.to(device).eval()
        self._locator = AnswerLocator(self._tokenizer, features.answer_openings, features.answer_pattern)
        self._recorder = LayerLogitRecorder(model)
        self._longest = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 30
        self._name, self._batch_tokens = name, batch_tokens

    def require_fit(self, rollouts: Sequence[Rollout]) -> None:
        """Raise ConfigError if the tokenizer is not that of the model that wrote the texts."""
        texts = [text for rollout in rollouts[:CHECKED] for text in (rollout.prompt, rollout.response)]
        known, unknown = set(self._tokenizer.get_vocab()), self._tokenizer.unk_token_id
        strange = sorted({marker for text in texts for marker in CHAT_MARKER.findall(text)} - known)
        if strange:
            hint = f"has no token {strange[0]}, which the texts contain. Name the model that wrote them."
            raise ConfigError("--model", self._name, hint)
        coded = [self._tokenizer.encode(text, add_special_tokens=False) for text in texts]
        lost = sum(unknown is not None and unknown in ids for ids in coded)
        if lost:
            hint = f"has no tokens for characters of {lost} of {len(texts)} texts. Name the model that wrote them."
            raise ConfigError("--model", self._name, hint)

    def of(self, rollouts: Sequence[Rollout]) -> tuple[NDArray[np.int64], NDArray[np.float32], int]:
        """The indices (m,) of rollouts with a fingerprint, these (m, N), and how many were too long for the model.

        A rollout without a final answer has none.
        """
        inputs = [found for row, rollout in enumerate(rollouts) if (found := self._located(row, rollout)) is not None]
        fitting = sorted((item for item in inputs if item.length <= self._longest), key=lambda item: item.length)
        rows: list[int] = []
        logits = [np.empty((0, self._recorder.layer_count), np.float32)]
        while fitting:
            batch = [fitting.pop()]  # the longest first: a batch that does not fit the GPU fails at once
            while fitting and (len(batch) + 1) * batch[0].length <= self._batch_tokens:
                batch.append(fitting.pop())
            rows += [item.row for item in batch]
            logits.append(self._forward(batch))
        order = np.argsort(rows).astype(np.int64)
        return np.array(rows, np.int64)[order], np.concatenate(logits)[order], len(inputs) - len(rows)

    def _located(self, row: int, rollout: Rollout) -> _Input | None:
        response = self._tokenizer.encode(rollout.response, add_special_tokens=False)
        at = self._locator.locate(response)
        return None if at is None else _Input(row, [*self._prompt(rollout), *response[: at + 1]], response[at + 1])

    def _prompt(self, rollout: Rollout) -> list[int]:
        """The prompt's tokens as the model reads it, with the special tokens that the text does not have yet."""
        text = rollout.prompt
        if rollout.messages and self._tokenizer.chat_template:
            messages = list(rollout.messages)
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        begun = not text or text.startswith(self._tokenizer.bos_token or "\0")
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=not begun)
        return tokens

    @torch.no_grad()
    def _forward(self, batch: Sequence[_Input]) -> NDArray[np.float32]:
        ids = pad_sequence([torch.tensor(item.tokens) for item in batch], batch_first=True)
        lengths = torch.tensor([item.length for item in batch])
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        positions = padded_positions(lengths - 1, ids.shape[1])
        targets = torch.tensor([item.target for item in batch])
        device = self._model.device
        try:
            with self._recorder.record(positions, targets) as recording:
                # Without the unembedding, whose logits of all tokens nobody reads.
                self._model.base_model(input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False)
        except torch.OutOfMemoryError as error:
            hint = "does not fit in the GPU's memory. Halve it."
            raise ConfigError("--batch-tokens", self._batch_tokens, hint) from error
        assert recording.layer_logits is not None
        logits: NDArray[np.float32] = recording.layer_logits.cpu().numpy()
        return logits
