"""One evaluation: check the request, draw the missing samples, and report on all samples in the folder.

OUT/LABEL/settings.json        sampling settings of the label
OUT/LABEL/BENCHMARK.jsonl      its samples
OUT/LABEL/model-3f2a91c04d5e/  a checkpoint's weights for vLLM, if OpenRLHF saved none in Hugging Face format
OUT/                           the report over all labels
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meds_openrlhf.evaluation.models.loading import KnownModel, know
from meds_openrlhf.evaluation.models.naming import (
    agents_of_training,
    answer_pattern_of_training,
    find_models,
    length_of_training,
)
from meds_openrlhf.evaluation.problems import find_benchmarks
from meds_openrlhf.evaluation.request import MAX_TOKENS, Request
from meds_openrlhf.evaluation.samples import SampleStore
from meds_openrlhf.evaluation.sampling.blocks import Block, make_blocks
from meds_openrlhf.evaluation.sampling.draw import draw
from meds_openrlhf.evaluation.sampling.progress import Progress
from meds_openrlhf.evaluation.settings import Settings, check_settings, problems_hash, write_settings

if TYPE_CHECKING:
    from meds_openrlhf.evaluation.sampling.engine import EngineSettings
    from meds_openrlhf.evaluation.sampling.fleet import RayFleet
    from meds_openrlhf.placement.plan import Plan


@dataclass(frozen=True)
class Subject:
    """A model, with the settings and prompts to sample it with."""

    known: KnownModel
    folder: Path
    settings: Settings
    prompts: dict[str, dict[str, tuple[int, ...]]]  # token ids by benchmark and problem

    @property
    def label(self) -> str:
        """The model's name in tables."""
        return self.known.model.label


@dataclass(frozen=True)
class Sampling:
    """A subject whose files are open: ``present`` of ``total`` samples exist, and ``right`` of those are right.

    ``weights`` is the folder or hub name that engines load.
    """

    subject: Subject
    weights: str
    stores: dict[str, SampleStore]
    blocks: list[Block]
    total: int
    present: int
    right: int


class Evaluation:
    """A request that has passed every check. Reads configurations and tokenizers, but starts and writes nothing."""

    def __init__(self, request: Request, say: Callable[[str], None] = lambda line: None) -> None:
        request.check()
        self.request = request
        self.benchmarks = find_benchmarks(request.benchmarks, request.data)
        models = find_models(request.models, request.step)
        self._max_tokens = request.max_tokens or length_of_training(request.models) or MAX_TOKENS
        self._answer_pattern = request.answer_pattern or answer_pattern_of_training(request.models)
        for run, agent in agents_of_training(request.models).items():
            say(
                f"{run} was trained with the agent {agent}, which is not used: responses are single turns without tools"
            )
        say(f"reading tokenizers and prompts: {', '.join(model.label for model in models)}")  # imports transformers
        self.subjects = [self._subject(know(model, request.tensor_parallel)) for model in models]

    def _subject(self, known: KnownModel) -> Subject:
        request = self.request
        folder = request.out / known.model.label
        wanted = Settings(
            model=known.model.source,
            fingerprint=known.fingerprint,
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed,
            max_tokens=self._max_tokens,
            benchmarks={benchmark.name: problems_hash(benchmark.problems) for benchmark in self.benchmarks},
            answer_pattern=self._answer_pattern,
        )
        prompts = {benchmark.name: known.tokens(benchmark.name, benchmark.problems) for benchmark in self.benchmarks}
        return Subject(known, folder, check_settings(folder, wanted), prompts)

    @contextmanager
    def opened(self) -> Iterator[list[Sampling]]:
        """Open and lock every subject's samples, find missing samples, and prepare weights if samples are missing."""
        with ExitStack() as stack:
            yield [self._open(subject, stack) for subject in self.subjects]

    def _open(self, subject: Subject, stack: ExitStack) -> Sampling:
        write_settings(subject.folder, subject.settings)
        stores: dict[str, SampleStore] = {}
        blocks: list[Block] = []
        verdicts: list[bool] = []  # of the samples that exist
        for benchmark in self.benchmarks:
            store = SampleStore(subject.folder / f"{benchmark.name}.jsonl")
            stores[benchmark.name] = stack.enter_context(store)
            missing = store.missing(benchmark.problems, self.request.n)
            blocks += make_blocks(benchmark.name, missing, subject.prompts[benchmark.name])
            verdicts += store.verdicts(self.request.n)
        total = sum(len(benchmark.problems) for benchmark in self.benchmarks) * self.request.n
        weights = _weights(subject) if blocks else ""
        return Sampling(subject, weights, stores, blocks, total, len(verdicts), sum(verdicts))


def draw_missing(evaluation: Evaluation, samplings: Sequence[Sampling], progress: Progress) -> None:
    """Start engines on the Ray cluster and draw the missing samples, model by model.

    Raises ConfigError if there is no room for the engines, and EvaluationLostError if no engine is left.
    """
    from meds_openrlhf.evaluation.sampling.fleet import plan_when_free
    from meds_openrlhf.placement.groups import release, reserve

    request = evaluation.request
    largest = max(len(sampling.blocks) for sampling in samplings)
    began = time.monotonic()
    plan = plan_when_free(request.engines, request.tensor_parallel, largest, request.wait_seconds, progress.say)
    groups = reserve(plan, request.wait_seconds, setting="--wait", since=began)
    try:
        missing = [sampling for sampling in samplings if sampling.blocks]
        for _, alike in groupby(missing, key=lambda sampling: _engine_key(request, sampling)):
            _draw_with_engines(evaluation, list(alike), plan, groups["engines"], progress)
    finally:
        release(groups)


def _engine_key(request: Request, sampling: Sampling) -> tuple[object, ...]:
    """Consecutive samplings with the same key share engines, which takes seconds for a model rather than a start.

    Only on the CPU, where the samples were seen to be those of separate engines.
    """
    settings = _engine_settings(request, sampling)
    if not settings.on_cpu or not Path(sampling.weights).is_dir():
        return (sampling.subject.label,)
    return replace(settings, model="", revision=None), sampling.subject.known.architecture


def _draw_with_engines(
    evaluation: Evaluation, samplings: Sequence[Sampling], plan: Plan, group: Any, progress: Progress
) -> None:
    """Draw the samples of models that share engines, one model after another."""
    from meds_openrlhf.evaluation.sampling.fleet import running_engines

    first = _engine_settings(evaluation.request, samplings[0])
    where = " (on the CPU)" if first.on_cpu else ""
    progress.say(f"{_to_draw(samplings[0])}; starting {plan}{where}")
    with running_engines(group, plan, first, progress.say) as fleet:
        for number, sampling in enumerate(samplings):
            settings = _engine_settings(evaluation.request, sampling)
            if number:
                progress.say(f"{_to_draw(sampling)}, with the same engines")
                fleet.load(settings)
            _draw_one(sampling, fleet, settings, progress)


def _to_draw(sampling: Sampling) -> str:
    missing = sampling.total - sampling.present
    return f"{sampling.subject.label}: {missing} of {sampling.total} samples to draw"


def _draw_one(sampling: Sampling, fleet: RayFleet, settings: EngineSettings, progress: Progress) -> None:
    label = sampling.subject.label
    left = Counter(block.benchmark for block in sampling.blocks)
    progress.begin(label, sampling.total, sampling.present, sampling.right)
    try:
        for block, samples in draw(fleet, sampling.blocks, settings.in_flight, progress.say):
            sampling.stores[block.benchmark].append(samples)
            progress.add(len(samples), sum(sample.right for sample in samples))
            left[block.benchmark] -= 1
            if not left[block.benchmark]:
                progress.say(f"{label}: {block.benchmark} is sampled")
    finally:
        progress.close()


def _weights(subject: Subject) -> str:
    """The folder or name that vLLM loads; converts a checkpoint unless that is already done."""
    from meds_openrlhf.evaluation.models.conversion import converted

    model = subject.known.model
    folder = converted(model, subject.known.fingerprint, subject.folder) if model.shards else model.folder
    return str(folder or model.hub)


def _engine_settings(request: Request, sampling: Sampling) -> EngineSettings:
    from meds_openrlhf.evaluation.sampling.engine import EngineSettings

    subject = sampling.subject
    prompts = [tokens for found in subject.prompts.values() for tokens in found.values()]
    return EngineSettings(
        model=sampling.weights,
        revision=subject.known.revision,
        tensor_parallel=request.tensor_parallel,
        max_model_len=subject.known.longest(prompts, subject.settings.max_tokens),
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        max_tokens=subject.settings.max_tokens,
        on_cpu=request.on_cpu,
        answer_pattern=subject.settings.answer_pattern,
    )
