"""One evaluation: check the request, draw the missing samples, and show progress on the console.

OUT/LABEL/settings.json        sampling settings of the label
OUT/LABEL/BENCHMARK.jsonl      its samples
OUT/LABEL/model-3f2a91c04d5e/  a checkpoint's weights for vLLM, if OpenRLHF saved none in Hugging Face format
OUT/                           the report over all labels
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from meds_openrlhf.evaluation import models
from meds_openrlhf.evaluation.request import (
    MAX_TOKENS,
    Request,
    Settings,
    check_settings,
    find_benchmarks,
    problems_hash,
    write_settings,
)
from meds_openrlhf.evaluation.samples import Block, EngineSettings, SampleStore, make_blocks
from meds_openrlhf.paths import inside
from meds_openrlhf.terminal import printable


@dataclass(frozen=True)
class Subject:
    """A model, with the settings and prompts to sample it with."""

    known: models.KnownModel
    folder: Path
    settings: Settings
    prompts: dict[str, dict[str, tuple[int, ...]]]  # token ids by benchmark and problem

    @property
    def label(self) -> str:
        """The model's name in tables."""
        return self.known.model.label


@dataclass(frozen=True)
class Sampling:
    """A subject whose files are open: ``present`` of ``total`` samples exist, and ``right`` of those are right."""

    subject: Subject
    engine: EngineSettings
    stores: dict[str, SampleStore]
    blocks: list[Block]
    total: int
    present: int
    right: int


class Evaluation:
    """A request that has passed every check. Reads configurations and tokenizers, but starts and writes nothing."""

    def __init__(self, request: Request, say: Callable[[str], None] = lambda line: None) -> None:
        self.request = request
        self.benchmarks = find_benchmarks(request.benchmarks, request.data)
        found = models.find_models(request.models)
        runs = models.runs_among(request.models)
        self._max_tokens = (
            request.max_tokens or models.agreed(runs, "--max-tokens", models.response_length) or MAX_TOKENS
        )
        self._answer_pattern = request.answer_pattern or models.agreed(
            runs, "--answer-pattern", lambda config: config.meds.features.answer_pattern
        )
        for run, config in runs.items():
            if agent := config.openrlhf.get("train.agent_func_path"):
                unused = "which is not used: responses are single turns without tools"
                say(f"{run} was trained with the agent {agent}, {unused}")
        say(f"reading tokenizers and prompts: {', '.join(model.label for model in found)}")  # imports transformers
        self.subjects = [
            self._subject(models.know(model, request.tensor_parallel, request.trust_remote_code)) for model in found
        ]

    def _subject(self, known: models.KnownModel) -> Subject:
        request = self.request
        folder = inside(request.out, known.model.label, "--out")
        wanted = Settings(
            model=known.model.source,
            fingerprint=known.fingerprint,
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed,
            max_tokens=self._max_tokens,
            benchmarks={name: problems_hash(problems) for name, problems in self.benchmarks.items()},
            answer_pattern=self._answer_pattern,
        )
        prompts = {name: known.tokens(name, problems) for name, problems in self.benchmarks.items()}
        return Subject(known, folder, check_settings(folder, wanted), prompts)

    @contextmanager
    def opened(self) -> Iterator[list[Sampling]]:
        """Open and lock every subject's samples, find missing samples, and prepare weights if samples are missing."""
        with ExitStack() as stack:
            yield [self._open(subject, stack) for subject in self.subjects]

    def _open(self, subject: Subject, stack: ExitStack) -> Sampling:
        write_settings(subject.folder, subject.settings)
        n, stores = self.request.n, dict[str, SampleStore]()
        blocks: list[Block] = []
        verdicts: list[bool] = []  # of the samples that exist
        for name, problems in self.benchmarks.items():
            store = stores[name] = stack.enter_context(SampleStore(inside(subject.folder, f"{name}.jsonl", "--out")))
            blocks += make_blocks(name, store.missing(problems, n), subject.prompts[name])
            verdicts += store.verdicts(n)
        total = sum(map(len, self.benchmarks.values())) * n
        return Sampling(
            subject, self._engine(subject, bool(blocks)), stores, blocks, total, len(verdicts), sum(verdicts)
        )

    def _engine(self, subject: Subject, draws: bool) -> EngineSettings:
        """What engines load, and how they sample; a checkpoint is converted, unless that is done, if it ``draws``."""
        model, trusted = subject.known.model, self.request.trust_remote_code
        folder = model.folder
        if draws and model.shards is not None:
            folder = models.converted(model, subject.known.fingerprint, subject.folder, trusted)
        prompts = [tokens for found in subject.prompts.values() for tokens in found.values()]
        return EngineSettings(
            model=str(folder or model.hub),
            revision=subject.known.revision,
            trust_remote_code=trusted,
            tensor_parallel=self.request.tensor_parallel,
            max_model_len=subject.known.longest(prompts, subject.settings.max_tokens),
            on_cpu=self.request.on_cpu,
            sampling=subject.settings,
        )


class Progress:
    """Writes to ``stream``; on a terminal, a bar below the lines shows samples, samples per second and pass@1 so far.

    In a log file, a line is written at every tenth of the samples instead.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def say(self, line: str) -> None:
        """Write a line."""
        tqdm.write(printable(line), file=self._stream)
        self._stream.flush()

    @contextmanager
    def of(self, label: str, total: int, present: int, right: int) -> Iterator[None]:
        """Show a model's progress; ``present`` of ``total`` samples exist, and ``right`` of those are right."""
        self._label, self._total, self._drawn, self._right = label, total, present, right
        look = {"desc": label, "unit": "sample", "file": self._stream, "dynamic_ncols": True, "leave": False}
        with tqdm(total=total, initial=present, disable=None, **look) as self._bar:
            yield

    def add(self, drawn: int, right: int) -> None:
        """Report ``drawn`` more samples on disk, of which ``right`` are right."""
        tenths = 10 * self._drawn // self._total
        self._drawn += drawn
        self._right += right
        accuracy = self._right / self._drawn
        if not self._bar.disable:
            self._bar.set_postfix_str(f"pass@1 {accuracy:.3f}", refresh=False)
            self._bar.update(drawn)
        elif 10 * self._drawn // self._total > tenths:
            self.say(f"{self._label}: {self._drawn} of {self._total} samples, pass@1 {accuracy:.2f}")


def draw_missing(evaluation: Evaluation, samplings: Sequence[Sampling], progress: Progress) -> None:
    """Start engines on the Ray cluster and draw the missing samples, model by model.

    Raises ConfigError if there is no room for the engines, and RunLostError if an engine fails or is lost.
    """
    from meds_openrlhf.evaluation.fleet import draw, plan_engines
    from meds_openrlhf.placement.ray_cluster import plan_when_free, release, reserve

    request = evaluation.request
    largest = max(len(sampling.blocks) for sampling in samplings)
    wanted = (request.engines, request.tensor_parallel, largest)
    plan = plan_when_free(
        lambda nodes: plan_engines(nodes, *wanted), request.wait_seconds, progress.say, setting="--wait"
    )
    groups = reserve(plan, request.wait_seconds, setting="--wait")
    try:
        for sampling in (sampling for sampling in samplings if sampling.blocks):
            label, total, present = sampling.subject.label, sampling.total, sampling.present
            where = " (on the CPU)" if request.on_cpu else ""
            progress.say(f"{label}: {total - present} of {total} samples to draw; starting {plan}{where}")
            drawing = draw(groups["engines"], plan, sampling.engine, sampling.blocks)
            # Closed here: engines must end while the connection to Ray is open, also after an error or Ctrl-C.
            with progress.of(label, total, present, sampling.right), closing(drawing):
                for benchmark, samples in drawing:
                    sampling.stores[benchmark].append(samples)
                    progress.add(len(samples), sum(sample.right for sample in samples))
    finally:
        release(groups)
