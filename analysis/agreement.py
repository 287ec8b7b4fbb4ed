"""Agreement of two labelings of the same rollouts: clusters with known mistakes, or with a judge's categories.

The measure is that of the paper's ablation (Section 5.3): the share of pairs of rollouts that both labelings put into
the same cluster, or both into different clusters; over all pairs, the Rand index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.metrics import (  # type: ignore[import-untyped]
    adjusted_rand_score,
    homogeneity_completeness_v_measure,
    rand_score,
)

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.features.final_answer import same_answer_form
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.files import MOST_TEXT, read_file
from meds_openrlhf.memory.sets import NOISE
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.features import FEATURES, SINGLE, labels_of_feature, own_transform
from meds_openrlhf.rollouts.run import NONE, codes_of, prompt_codes
from meds_openrlhf.stats.presentation import shown

Labels = NDArray[np.integer]

MEASURES = ("pairwise", "adjusted_rand", "homogeneity", "completeness")


def agreement(labels: Labels, truth: Labels) -> dict[str, float]:
    """The agreement of ``labels`` (n,) with ``truth`` (n,), n > 1: the number of rows and of pairs, and `MEASURES`.

    ``pairwise`` is over pairs, the others are over rows: ``adjusted_rand`` is 0 for random labels and 1 for the truth
    itself; ``homogeneity`` is 1 if each cluster holds a single kind of the truth, ``completeness`` if each kind of the
    truth lies in a single cluster.

    Equal labels are the same cluster, including -1: noise is a set, as in the paper. Apply `separate_noise` first to
    treat each row of noise as a separate cluster.
    """
    homogeneity, completeness, _ = homogeneity_completeness_v_measure(truth, labels)
    measures = rand_score(truth, labels), adjusted_rand_score(truth, labels), homogeneity, completeness
    counts = {"rows": len(labels), "pairs": math.comb(len(labels), 2)}
    return {**counts, **dict(zip(MEASURES, map(float, measures)))}


def agreement_by_prompt(labels: Labels, truth: Labels, prompts: Labels) -> pd.DataFrame:
    """The `agreement` within each of the ``prompts`` (n,) that has several rows, a line each."""
    places = [np.flatnonzero(prompts == prompt) for prompt in np.unique(prompts)]
    found = [agreement(labels[rows], truth[rows]) for rows in places if len(rows) > 1]
    return pd.DataFrame(found, columns=["rows", "pairs", *MEASURES])


def separate_noise(labels: Labels) -> NDArray[np.int64]:
    """The same clusters, with each row of noise as an additional cluster, numbered after them."""
    separate = np.array(labels, dtype=np.int64)
    alone = separate == NOISE
    separate[alone] = separate.max(initial=NOISE) + 1 + np.arange(alone.sum())
    return separate


# ── clusters that answers alone give ──


def labels_by_answer(run: Path, wrong: pa.Table) -> dict[str, Labels]:
    """Clusters (n,) of ``wrong`` rows, by name: of a prompt and with equal answers, or with equal first tokens of them.

    They need no layer logits. Logits that know more than the answer must exceed them. Rows without an answer are noise.
    """
    prompts, found = prompt_codes(wrong), {}
    for name, key in {"equal-answer": same_answer_form, **_first_token_of(run)}.items():
        keys = [answer and key(answer) for answer in wrong["answer"].to_pylist()]
        codes, values = codes_of(pa.chunked_array([keys], pa.string()))
        found[name] = np.where(codes == NONE, NOISE, prompts * len(values) + codes)
    return found


def _first_token_of(run: Path) -> dict[str, Callable[[str], str]]:
    """Return the first token of an answer, at which layer logits are recorded, under its name.

    The run's tokenizer.json splits ``\\boxed{`` and the answer. Without that file it is the first character.
    """
    from tokenizers import Tokenizer

    path, opening = RunPaths(run).tokenizer, "\\boxed{"
    try:
        encode = Tokenizer.from_buffer(read_file(path, MOST_TEXT)).encode
    except FileNotFoundError:
        return {"first-character": lambda answer: answer[0]}
    except ValueError as error:
        hint = f"cannot be read ({error}). Restore it from a backup, or remove it."
        raise ConfigError("RUN", str(path), hint) from error

    def first_token(answer: str) -> str:
        found = encode(opening + answer, add_special_tokens=False)
        return next((token for token, (start, _) in zip(found.tokens, found.offsets) if start >= len(opening)), "")

    return {"first-token": first_token}


# ── with a judge's categories, by each of the paper's features ──


def agreements(
    run: Path, wrong: pa.Table, rows: NDArray[np.int64], categories: NDArray[np.int64], preset: str
) -> tuple[list[dict[str, Any]], int]:
    """Agreement of each feature's clusters with the ``categories`` (k,) of ``rows`` (k,), and the number of pairs.

    The features are those of the paper's ablation, and the run's own if it is none of them; then `labels_by_answer`.
    All rows of ``wrong`` are clustered, as in the memory; ``clusters`` are those with judged rows, ``noise`` is the
    number of judged rows in no cluster. The shares are of pairs of one prompt, None without pairs: ``noise_alone``
    treats each row in no cluster as a separate kind, ``noise_together`` all of them as one kind.
    """
    features = features_of(own_transform(run), wrong.schema.field("layer_logits").type.list_size)
    clustered = {name: labels_of_feature(wrong, transform, preset) for name, transform in features.items()}
    prompts, found, pairs = prompt_codes(wrong)[rows], [], 0
    for name, labels in {**clustered, **labels_by_answer(run, wrong)}.items():
        labels = labels[rows]
        clusters = len(set(labels.tolist()) - {NOISE})
        entry: dict[str, Any] = {"variant": name, "clusters": clusters, "noise": int((labels == NOISE).sum())}
        for reading, numbered in {"noise_together": labels, "noise_alone": separate_noise(labels)}.items():
            table = agreement_by_prompt(numbered, categories, prompts)
            pairs = int(table.pairs.sum())
            entry[reading] = float(np.average(table.pairwise, weights=table.pairs)) if pairs else None
        found.append(entry)
    return found, pairs


def features_of(own: FeatureTransform, layers: int) -> dict[str, FeatureTransform | None]:
    """The features by name, in the paper's notation for a model with ``layers`` layers; None is `SINGLE`."""
    features = {_paper_name(variant, layers): feature for variant, feature in FEATURES.items()}
    if not any(feature is not None and _are_equal(feature, own, layers) for feature in features.values()):
        features[f"{len(own.matrix(layers))} (own)"] = own
    return features


def name_of(transform: FeatureTransform, own: FeatureTransform, layers: int) -> str | None:
    """The name of ``transform`` in `features_of`, None if it is none of them."""
    found = ((name, feature) for name, feature in features_of(own, layers).items() if feature is not None)
    return next((name for name, feature in found if _are_equal(feature, transform, layers)), None)


def _are_equal(one: FeatureTransform, other: FeatureTransform, layers: int) -> bool:
    return one.normalize == other.normalize and np.array_equal(one.matrix(layers), other.matrix(layers))


def _paper_name(variant: str, layers: int) -> str:
    """A variant's name in the paper's notation, e.g. 14-diff for the last half's differences of 28 layers."""
    chosen = layers // 2 if variant.startswith("last-half") else layers
    return variant if variant == SINGLE else f"{chosen}{'-diff' if variant.endswith('-diff') else ''}"


def agreement_table(found: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row per feature."""
    rows = [
        [variant, clusters, noise, *(shown(share and 100 * share) for share in shares)]
        for variant, clusters, noise, *shares in (entry.values() for entry in found)
    ]
    header = ["feature", "clusters", "noise", "agreement (%)", "agreement, each noise row a cluster (%)"]
    return pd.DataFrame(rows, columns=header)
