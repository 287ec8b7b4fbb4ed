"""Fingerprints of logged responses: one forward pass of the model over each, up to its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from meds_openrlhf.chat_templates import CHAT_MARKER
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.schema import FeatureSettings
from meds_openrlhf.dumps.formats import Rollout
from meds_openrlhf.features.answer import AnswerLocator
from meds_openrlhf.features.layout import padded_positions
from meds_openrlhf.features.recorder import LayerLogitRecorder
from meds_openrlhf.rollouts.texts import turns_in
from meds_openrlhf.runtime.hub import loading

CHECKED = 64  # texts in which chat markers are looked for


class Fingerprints:
    """Layer logits by the model in the folder or on the hub ``name``; on the GPU, if there is one, in bfloat16.

    ``batch_tokens``: tokens in a forward pass, with padding. Raises ConfigError if the model cannot be loaded,
    or has code of its own and is not ``trusted``.
    """

    def __init__(self, name: str, features: FeatureSettings, batch_tokens: int, trusted: bool = False) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar

        device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
        disable_progress_bar()  # of loading
        with loading(name, "--model", trusted) as options:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(name, **options)
            model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **options)
        self.config = model.config
        self._model = model.to(device).eval()
        self.find_answers(features.answer_pattern)
        self._recorder = LayerLogitRecorder(model)
        self._longest = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 30
        self._name, self._batch_tokens = name, batch_tokens

    def find_answers(self, pattern: str | None) -> None:
        """Look for final answers as `features.answer.last_answer` does with the ``pattern``."""
        self._locator = AnswerLocator(self._tokenizer, pattern)

    def require_fit(self, rollouts: Sequence[Rollout]) -> None:
        """Raise ConfigError if the texts have a chat marker that is not a token of the model."""
        text = "".join(rollout.prompt + rollout.response for rollout in rollouts[:CHECKED])
        strange = sorted(set(CHAT_MARKER.findall(text)) - self._tokenizer.get_vocab().keys())
        if strange:
            hint = f"has no token {strange[0]}, which the texts contain. Name the model that wrote them."
            raise ConfigError("--model", self._name, hint)

    def of(self, rollouts: Sequence[Rollout]) -> tuple[NDArray[np.int64], NDArray[np.float32], int]:
        """The indices (m,) of rollouts with a fingerprint, these (m, N), and how many were too long for the model.

        A rollout without a final answer has none.
        """
        located = [(row, *found) for row, rollout in enumerate(rollouts) if (found := self._located(rollout))]
        fitting = sorted((item for item in located if len(item[1]) <= self._longest), key=lambda item: len(item[1]))
        rows: list[int] = []
        logits = [np.empty((0, self._recorder.layer_count), np.float32)]
        while fitting:
            batch = [fitting.pop()]  # the longest first: a batch that does not fit the GPU fails at once
            while fitting and (len(batch) + 1) * len(batch[0][1]) <= self._batch_tokens:
                batch.append(fitting.pop())
            batch_rows, tokens, targets = zip(*batch)
            rows += batch_rows
            logits.append(self._forward(tokens, targets))
        order = np.argsort(rows).astype(np.int64)
        return np.array(rows, np.int64)[order], np.concatenate(logits)[order], len(located) - len(rows)

    def _located(self, rollout: Rollout) -> tuple[list[int], int] | None:
        """The tokens of the prompt and of the response up to the answer, and the answer's first token."""
        response: list[int] = []
        generated: list[bool] = []
        for text, is_generated in turns_in(rollout.response):
            response += self._tokenizer.encode(text, add_special_tokens=False)
            generated += [is_generated] * (len(response) - len(generated))
        at = self._locator.locate(response, generated)
        return None if at is None else ([*self._prompt(rollout), *response[: at + 1]], response[at + 1])

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
    def _forward(self, tokens: Sequence[list[int]], targets: Sequence[int]) -> NDArray[np.float32]:
        ids = pad_sequence([torch.tensor(row) for row in tokens], batch_first=True)
        lengths = torch.tensor([len(row) for row in tokens])
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        positions = padded_positions(lengths - 1, ids.shape[1])
        device = self._model.device
        try:
            with self._recorder.record(positions, torch.tensor(targets)) as recording:
                # Without the unembedding, whose logits of all tokens nobody reads.
                self._model.base_model(input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False)
        except torch.OutOfMemoryError as error:
            hint = "does not fit in the GPU's memory. Halve it."
            raise ConfigError("--batch-tokens", self._batch_tokens, hint) from error
        assert recording.layer_logits is not None
        logits: NDArray[np.float32] = recording.layer_logits.cpu().numpy()
        return logits
