"""Write the sample dumps of tests/dumps/data with the RL programs' own writers, which no extra installs.

``python -m tests.dumps.trainer_dumps FOLDER PROGRAM...``, outside a git repository and with the repository in
``PYTHONPATH``, once for each environment; ``FOLDER`` is ``tests/dumps/data`` and ``PROGRAM`` a name in ``WRITERS``:

- ``verl skyrl areal``: the unpacked wheels of verl 0.9.1, skyrl 0.3.0 and areal 1.0.4, and aiofiles, in ``PYTHONPATH``.
  What the writers import beside themselves (ray, ...) is stubbed here.
- ``trl``: TRL 1.16.0.
- ``verifiers``: verifiers 0.4.0, orjson and pyzstd, and prime-rl's writers.
- ``inspect``: inspect-ai 0.3.285.
- ``nemo_rl slime rllm torchtitan open_instruct``: their writers, which no registry has.

Writers that no registry has are imported from ``SOURCES``, a folder in ``PYTHONPATH`` with these files at these names,
which are the repositories' own, whole or only the named functions (with what these call):

- NVIDIA-NeMo/RL, ``nemo_rl/utils/logger.py`` @ 0275e75840b11fd622e58886ae3f462dc334c1fa:
  ``Logger.log_batched_dict_as_jsonl``; ``nemo_rl/distributed/batched_data_dict.py`` @
  001888f62679f97844ce08a2311ac90af866b6c6: ``BatchedDataDict``.
- THUDM/slime, ``slime/utils/types.py`` (with ``rollout_id``): ``Sample``; ``slime/observability/rollout_data_utils.py``
  @ 4c4adbbf3d1bab34d5123e93d1ad112a2bc597e2: ``save_debug_rollout_data``; ``slime/utils/train_dump_utils.py`` @
  429eb3df668e6dd2aedd01f327e7350683cc9ccf: ``save_debug_train_data``; ``slime/observability/train_data_utils.py`` @
  d92cb5deecba86f3e3da726060dabb2a3eebec5d: ``_build_dump_payload``.
- rllm-org/rllm, ``rllm/utils/episode_logger.py`` @ 0de8298588c86f251ac4c7aa71b494429155771d: ``EpisodeLogger``.
- PrimeIntellect-ai/prime-rl, ``src/prime_rl/monitors/file/monitor.py`` @ 048a6e23428ea9b47feaba3c9fa75376e89a383e:
  ``FileMonitor``, with ``traces/chunks.py`` @ 551bfc39ba61d9f0aec59780d4a3d7e5395f1fdc, ``traces/index.py`` @
  13e96a1254e9eae2564a5b6985ac5ada32ae0cc4 and ``traces/update.py`` @ 65a185848115523d2feb2e110d04d05cfbea3a08; an older
  ``src/prime_rl/monitors/file.py``, of August 2026 with ``rollouts/step_N/KIND/SUBSET/traces.jsonl``, as
  ``prime_rl/monitors/file_by_step.py``.
- pytorch/torchtitan's ``RolloutSampleRecorder`` (experiments/rl) as ``torchtitan/experiments/rl/rollout_recorder.py``.
- allenai/open-instruct, ``open_instruct/rl_utils.py`` of 2026: ``_save_rollouts`` and ``RolloutMetadata``.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

PROBLEMS = (("What is 12*13?", "156"), ("What is 81/9+4?", "13"))
# The first is right; two of the three wrong rollouts have the same answer.
ANSWERS = (("156", "146", "146", "166"), ("13", "6", "6", "14"))
OPENINGS = ("", "Now: ", "Well, ")  # of the steps 0 to 2: no text recurs
WAYS = ("The result is", "I compute it in one line:", "Step by step, this gives", "My guess is")
STEPS = (1, 2)
SYSTEM = "You are a helpful assistant."


@dataclass
class Rollout:
    """One of the eight rollouts of a step."""

    prompt: int
    index: int
    question: str
    truth: str
    answer: str
    text: str

    @property
    def right(self) -> bool:
        return self.answer == self.truth

    @property
    def advantage(self) -> float:
        return float(self.right) - 0.25  # without the standard deviation


def rollouts(step: int) -> list[Rollout]:
    """Four rollouts of each problem, one of which is right; another one in each step."""
    made = []
    for prompt, (question, truth) in enumerate(PROBLEMS):
        answers = ANSWERS[prompt][step % 4 :] + ANSWERS[prompt][: step % 4]
        for index, answer in enumerate(answers):
            text = f"{OPENINGS[step]}{WAYS[index]} \\boxed{{{answer}}}."
            made.append(Rollout(prompt, index, question, truth, answer, text))
    return made


def conversation(question: str) -> str:
    """A conversation up to the reply, in the markers of Qwen's template."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


class Tokenizer:
    """A tokenizer of words and of Qwen's markers, which are special."""

    pad_token_id = 0
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

    def __init__(self) -> None:
        self.words = list(self.special)

    def encode(self, text: str) -> list[int]:
        ids = []
        for word in re.findall(r"<\|\w+\|>|\s*[^\s<]+|\s+|<", text):
            if word not in self.words:
                self.words.append(word)
            ids.append(self.words.index(word))
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        words = [self.words[int(token)] for token in ids]
        return "".join(word for word in words if not (skip_special_tokens and word in self.special))

    def batch_decode(self, rows: Sequence[Sequence[int]], skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(row, skip_special_tokens) for row in rows]


class _Anything(type):
    """The type of what is imported from a stub: any attribute, any call, and a decorator that leaves a class alone."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

    def __call__(cls, *values: Any, **options: Any) -> Any:
        return values[0] if len(values) == 1 and not isinstance(values[0], str) else super().__call__()

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__


class Anything(metaclass=_Anything):
    """An instance of it is a context and returns the one value that it is called with."""

    def __call__(self, *values: Any, **options: Any) -> Any:
        return values[0] if len(values) == 1 and not isinstance(values[0], str) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class Stubs:
    """A finder of modules: of those named by ``stubbed`` and what is below them only ``kept`` are the program's."""

    def __init__(self, stubbed: Sequence[str], kept: Sequence[str]) -> None:
        self.stubbed = stubbed
        self.kept = kept

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name in self.kept or name.split(".")[0] not in self.stubbed:
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        class Stub(ModuleType):
            def __getattr__(self, attribute: str) -> Any:
                if attribute.startswith("__"):
                    raise AttributeError(attribute)
                return Anything

        module = Stub(spec.name)
        # The program's own modules are found below a stub of its package.
        below = spec.name.replace(".", "/")
        module.__path__ = [str(Path(folder) / below) for folder in sys.path if (Path(folder) / below).is_dir()]
        return module

    def exec_module(self, module: ModuleType) -> None:
        return None


def stub(stubbed: Sequence[str], *kept: str) -> None:
    sys.meta_path.insert(0, Stubs(stubbed, kept))  # type: ignore[arg-type]


def write_verl(folder: Path) -> None:
    """Training and validation dumps of both trainers of verl."""
    stub(
        ("ray", "transfer_queue", "tensordict", "omegaconf", "verl"),
        *(f"verl.trainer.ppo.{name}" for name in ("ray_trainer", "v1.trainer_base")),
    )
    import numpy as np
    import torch
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    tokenizer = Tokenizer()

    def padded(texts: Sequence[str]) -> torch.Tensor:
        rows = [tokenizer.encode(text) for text in texts]
        width = max(map(len, rows))
        return torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows])

    def trainer(kind: Any, step: int) -> Any:
        kind.__abstractmethods__ = frozenset()
        made = object.__new__(kind)
        made.tokenizer = tokenizer
        made.global_steps = step
        made._init_dump_executor()
        return made

    def prompt(rollout: Rollout) -> str:
        return f"<|im_start|>system\n{SYSTEM}<|im_end|>\n{conversation(rollout.question)}"

    def key(rollout: Rollout, step: int) -> str:
        return f"{step}f0c9a7e-5d1b-4f0e-9a53-7be1c2d4e{rollout.prompt}{step}0_{rollout.index}_0"

    def write_v1(where: Path, step: int, made: list[Rollout], replies: list[str], scores: list[float]) -> None:
        order = [*range(1, len(made)), 0]  # the writer sorts them
        texts = [f"{replies[i]}<|im_end|>" for i in order]
        rewards = torch.zeros(len(made), 4)
        rewards[:, -1] = torch.tensor([scores[i] for i in order])
        truths = [{"style": "rule", "ground_truth": made[i].truth} for i in order]
        data = {
            "uid": np.array([key(made[i], step) for i in order], dtype=object),
            "prompts": torch.nested.nested_tensor([torch.tensor(tokenizer.encode(prompt(made[i]))) for i in order]),
            "responses": torch.nested.nested_tensor([torch.tensor(tokenizer.encode(text)) for text in texts]),
            "rm_scores": rewards,
            "reward_model": np.array(truths, dtype=object),
        }
        sys.modules["verl.trainer.ppo.v1.trainer_base"].tq = SimpleNamespace(kv_batch_get=lambda **asked: data)  # type: ignore[attr-defined]
        batch = SimpleNamespace(keys=[key(made[i], step) for i in order], partition_id="train")
        writer = trainer(PPOTrainer, step)
        writer._log_rollout_data(batch, {}, str(where))
        writer._shutdown_dump_executor()

    for step in STEPS:
        made = rollouts(step)
        texts = [rollout.text for rollout in made]
        write_v1(folder / "v1", step, made, texts, [float(rollout.right) for rollout in made])
        # DAPO: a wrong rollout gets -1, and a long one less.
        overlong = [(1.0 if rollout.right else -1.0) - (0.375 if rollout.index % 2 else 0.0) for rollout in made]
        write_v1(folder / "v1_overlong", step, made, texts, overlong)
    made = rollouts(1)
    asked = (
        'I compute it.\n<tool_call>\n{{"name": "python", "arguments": {{"code": "print({})"}}}}\n</tool_call><|im_end|>'
        "\n<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n<|im_start|>assistant\n{}"
    )
    replies = [asked.format(rollout.question[8:-1], rollout.truth, rollout.text) for rollout in made]
    write_v1(folder / "v1_tools", 1, made, replies, [float(rollout.right) for rollout in made])

    for step in (0, 2):  # the first before the training
        made = rollouts(step)
        scores = [float(rollout.right) for rollout in made]
        extras = {
            "reward": scores,
            "acc": [rollout.right for rollout in made],
            "pred": [rollout.answer for rollout in made],
            "uid": [key(rollout, step) for rollout in made],
        }
        writer = trainer(PPOTrainer, step)
        inputs = [tokenizer.decode(tokenizer.encode(prompt(rollout)), skip_special_tokens=True) for rollout in made]
        writer._dump_generations(
            inputs,
            [rollout.text for rollout in made],
            [rollout.truth for rollout in made],
            scores,
            extras,
            str(folder / "v1_validation"),
        )
        writer._shutdown_dump_executor()

    class Batch(list):
        pass

    for step in STEPS:
        for where in ("legacy", "legacy_text"):
            made = sorted(rollouts(step), key=lambda rollout: (rollout.index, rollout.prompt))  # balanced: scattered
            raw = [1.0 if rollout.right else -1.0 for rollout in made]
            # As math_dapo gives them; of another kind if one row's differ: all become texts, or objects.
            acc: list[Any] = [rollout.right for rollout in made]
            if where == "legacy_text" and step == 1:
                acc[0] = str(acc[0])
            if where == "legacy_text" and step == 2:
                acc = [np.bool_(value) for value in acc[:-1]] + [None]
            batch = Batch(
                SimpleNamespace(non_tensor_batch={"reward_model": {"ground_truth": rollout.truth}}) for rollout in made
            )
            batch.batch = {  # type: ignore[attr-defined]
                "prompts": padded([prompt(rollout) for rollout in made]),
                "responses": padded([f"{rollout.text}<|im_end|>" for rollout in made]),
                "token_level_scores": torch.tensor(raw)[:, None],
            }
            batch.non_tensor_batch = {}  # type: ignore[attr-defined]
            extras = {
                "score": np.array(raw),
                "acc": np.array(acc),
                "pred": np.array([rollout.answer for rollout in made]),
            }
            writer = trainer(RayPPOTrainer, step)
            writer._log_rollout_data(batch, extras, {}, str(folder / where))
            writer._shutdown_dump_executor()


def write_skyrl(folder: Path) -> None:
    """Evaluations after three steps; the scores of the second data set are of tokens."""
    stub(("ray", "skyrl", "loguru", "torchdata", "transformers"), "skyrl.train.utils.trainer_utils")
    from skyrl.train.utils.trainer_utils import dump_per_dataset_eval_results

    tokenizer = Tokenizer()
    for step in (0, 2):
        made = rollouts(step)
        outputs = [tokenizer.encode(f"{rollout.text}<|im_end|>") for rollout in made]
        scores: list[Any] = [float(rollout.right) for rollout in made]
        for i, rollout in enumerate(made):
            if rollout.prompt == 1:
                scores[i] = [0.0] * (len(outputs[i]) - 1) + [scores[i]]
        sources = ["sums", "openai/quotients"]
        where = folder / "dumped_evals" / f"global_step_{step}_evals"
        where.mkdir(parents=True, exist_ok=True)
        generated = {
            "prompt_token_ids": [tokenizer.encode(conversation(rollout.question)) for rollout in made],
            "response_ids": outputs,
            "rewards": scores,
            "stop_reasons": ["stop"] * len(made),
        }
        extras = [
            {"data_source": sources[rollout.prompt], "reward_spec": {"method": "rule", "ground_truth": rollout.truth}}
            for rollout in made
        ]
        metrics = {"eval/sums/avg_score": 0.25, "eval/all/avg_score": 0.25, "eval/all/pass_at_4": 1.0}
        dump_per_dataset_eval_results(
            where,
            tokenizer,
            generated,
            [sources[rollout.prompt] for rollout in made],
            ["math"] * len(made),
            extras,
            metrics,
        )


def write_areal(folder: Path) -> None:
    """``rollout/VERSION/TASK.jsonl``: a task is a prompt of a version, with its four rollouts; and an evaluation."""
    stub(("areal", "torchdata", "requests"), "areal.infra.workflow_executor")
    import torch
    from areal.infra.workflow_executor import WorkflowExecutor

    tokenizer = Tokenizer()
    executor = object.__new__(WorkflowExecutor)
    executor._tokenizer = tokenizer
    executor.config = SimpleNamespace(tokenizer_path="words")
    executor._get_dump_dir = lambda is_eval: str(
        folder / "logs/user/sums/trial" / ("eval-rollout" if is_eval else "rollout")
    )
    for version in (0, 1, 2):
        made = rollouts(version)
        for prompt in range(len(PROBLEMS)):
            for is_eval in (False, True)[: 1 + (version == 2)]:
                group = [rollout for rollout in made if rollout.prompt == prompt][: 1 if is_eval else 4]
                asked = [tokenizer.encode(conversation(rollout.question)) for rollout in group]
                said = [tokenizer.encode(f"{rollout.text}<|im_end|>") for rollout in group]
                width = max(len(a) + len(b) for a, b in zip(asked, said))

                def rows(values: list[list[int]], width: int = width) -> torch.Tensor:
                    return torch.tensor([row + [0] * (width - len(row)) for row in values])

                trajectory = {
                    "input_ids": rows([a + b for a, b in zip(asked, said)]),
                    "attention_mask": rows([[1] * (len(a) + len(b)) for a, b in zip(asked, said)]),
                    "loss_mask": rows([[0] * len(a) + [1] * len(b) for a, b in zip(asked, said)]),
                    "versions": rows([[-1] * len(a) + [version] * len(b) for a, b in zip(asked, said)]).clamp(
                        min=version
                    ),
                    "rewards": torch.tensor([float(rollout.right) for rollout in group]),
                }
                task = 2 * version + prompt + 100 * is_eval
                written = asyncio.run(executor._dump_trajectory(trajectory, task, is_eval))
                assert written == (True, ""), written


def write_trl(folder: Path) -> None:
    """Completions of plain prompts with one reward, the first without any, and of conversations with two rewards."""
    import torch
    from transformers import TrainerControl, TrainerState
    from trl import GRPOTrainer

    def log(
        where: Path,
        step: int,
        prompts: list[Any],
        completions: list[Any],
        rewards: dict[str, list[float | None]],
        advantages: list[float],
    ) -> None:
        where.joinpath("completions").mkdir(parents=True, exist_ok=True)
        trainer = object.__new__(GRPOTrainer)
        trainer.model = SimpleNamespace(training=True)
        trainer._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        trainer.accelerator = SimpleNamespace(is_main_process=True)
        trainer.args = SimpleNamespace(output_dir=str(where), report_to=[], include_num_input_tokens_seen="no")
        trainer.state = TrainerState(global_step=step, epoch=0.0)
        trainer.control = TrainerControl()
        trainer.callback_handler = SimpleNamespace(on_log=lambda args, state, control, logs: control)
        trainer.log_completions, trainer.num_completions_to_print, trainer.log_unique_prompts = True, 1, False
        table = torch.tensor(
            [[float("nan") if value is None else value for value in column] for column in rewards.values()]
        )
        trainer._logs = {
            "images": deque(),
            "prompt": deque(prompts),
            "completion": deque(completions),
            "rewards": {name: deque(column.tolist()) for name, column in zip(rewards, table)},
            "advantages": deque(torch.tensor(advantages).tolist()),
            "extra": {},
        }
        trainer.log({"loss": 0.0})

    for step in STEPS:
        made = rollouts(step)
        # A row whose reward is None is unscorable: its advantage is 0.
        scored = [None if i == 0 and step == 1 else float(rollout.right) for i, rollout in enumerate(made)]
        advantages = [0.0 if score is None else rollout.advantage for score, rollout in zip(scored, made)]
        log(
            folder / "plain",
            step,
            [rollout.question for rollout in made],
            [rollout.text for rollout in made],
            {"accuracy": scored},
            advantages,
        )
        prompts = [
            [{"role": "system", "content": SYSTEM}, {"role": "user", "content": rollout.question}] for rollout in made
        ]
        call = {"type": "function", "function": {"name": "python", "arguments": {"code": "print(1)"}}}
        completions = [
            [
                {"role": "assistant", "content": "I ask.", "tool_calls": [call]},
                {"role": "tool", "name": "python", "content": rollout.truth},
                {"role": "assistant", "content": rollout.text},
            ]
            for rollout in made
        ]
        each = {
            name: [float(rollout.right) if rollout.prompt == prompt else None for rollout in made]
            for prompt, name in enumerate(("product_reward", "quotient_reward"))
        }
        log(folder / "tools", step, prompts, completions, each, [rollout.advantage for rollout in made])


def write_verifiers(folder: Path) -> None:
    """prime-rl's episodes: in files of the steps, in a stream of a run that still writes, and in a finished stream."""
    from prime_rl.monitors.file import monitor as newest
    from prime_rl.monitors.file.traces import chunks
    from prime_rl.monitors.file.traces.update import make_update
    from prime_rl.monitors.file_by_step import FileMonitor as ByStep
    from verifiers.v1.configs.agent import WireAgentConfig
    from verifiers.v1.episode import EnvInfo, Episode, EvalWorkInfo, GroupInfo, PolicySpan, TrainRunInfo, TrainWorkInfo
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.serve.delta import DeltaStreamer
    from verifiers.v1.task import WireTaskData, task_key
    from verifiers.v1.trace import AgentInfo, Error, ModelCall, Reward, Timing, Trace, TraceTask
    from verifiers.v1.types import AssistantMessage, SystemMessage, ToolCall, ToolMessage, Usage, UserMessage

    clock = 1795824000.0

    def task(rollout: Rollout) -> TraceTask:
        data = WireTaskData(idx=rollout.prompt, prompt=rollout.question, answer=rollout.truth)
        return TraceTask(type="SumTask", data=data, hash=task_key(data.model_dump(mode="json", exclude_none=True)))

    def trace(rollout: Rollout, trace_id: str, messages: list[tuple[Any, bool]], **agent: Any) -> Trace:
        nodes = []
        for i, (message, sampled) in enumerate(messages):
            nodes.append(MessageNode(parent=i - 1 if i else None, message=message, sampled=sampled, timestamp=clock))
        calls = [
            ModelCall(node=i, finish_reason="stop", usage=Usage(prompt_tokens=9 * i, completion_tokens=9))
            for i, (_, sampled) in enumerate(messages)
            if sampled
        ]
        made = Trace(
            id=trace_id,
            task=task(rollout),
            agent=AgentInfo(config=WireAgentConfig(), **agent),
            nodes=nodes,
            calls=calls,
        )
        made.timing = Timing(start=clock)
        made.stop("agent_completed")
        made.ok = True
        return made

    def episode(rollout: Rollout, step: int, kind: str = "train", error: bool = False) -> Episode:
        name = f"{kind}{step}{rollout.prompt}{rollout.index}"
        asked = [(UserMessage(content=rollout.question), False)]
        if rollout.prompt == 1:  # an example, whose reply no model has written
            shown = [UserMessage(content="What is 1+1?"), AssistantMessage(content="It is \\boxed{2}.")]
            asked = [(SystemMessage(content=SYSTEM), False), *((message, False) for message in shown), *asked]
        call = ToolCall(id="call_0", name="python", arguments=json.dumps({"code": f"print({rollout.question[8:-1]})"}))
        used = [
            (AssistantMessage(reasoning_content="A tool helps.", tool_calls=[call]), True),
            (ToolMessage(tool_call_id="call_0", content=rollout.truth), False),
        ]
        solver = trace(rollout, f"{name}a", [*asked, *used, (AssistantMessage(content=rollout.text), True)])
        solver.rewards = {"correct": Reward(score=float(rollout.right), weight=2.0), "style": None}
        solver.info = {"advantage": 2 * rollout.advantage} if kind == "train" else {}
        traces = [solver]
        if rollout.index == rollout.prompt == 0:  # another agent, which is not trained and has no reward
            seen = [(UserMessage(content=f"Is this right? {rollout.text}"), False)]
            verdict = (AssistantMessage(content="I cannot say: \\boxed{0}."), True)
            traces.append(trace(rollout, f"{name}b", [*seen, verdict], name="judge", trainable=False))
        work = {"train": TrainWorkInfo, "eval": EvalWorkInfo}[kind](step=step, policy=PolicySpan(start=step, end=step))
        made = Episode(
            id=name if not error else f"{name}e",
            env=EnvInfo(id="sums", name="sums"),
            task=task(rollout),
            group=GroupInfo(id=f"{kind}{step}{rollout.prompt}"),
            run=TrainRunInfo(id="run0", name="sums", work=work),
            ok=not error,
            traces=[] if error else traces,
        )
        if error:
            made.errors = [Error(type="ProviderError", message="no connection", status_code=503)]
        return made

    def episodes(step: int, kind: str = "train", few: bool = False) -> list[Episode]:
        """All eight or, as the files of a step are not compressed, of each problem the right one and a wrong one."""
        chosen = rollouts(step)
        if few:
            chosen = [rollout for rollout in chosen if rollout.right or rollout.index == (1 if step == 0 else 0)]
        made = [episode(rollout, step, kind) for rollout in chosen]
        if kind == "train":
            made.insert(3, episode(rollouts(step)[0], step, error=True))
        return made

    async def by_step() -> None:
        monitor = ByStep()
        monitor.output_dir = folder / "by_step"
        for step in (0, 1):
            made = episodes(step, few=True)
            for one in made:
                await monitor.log_episodes([one], step=step, kind="train", subset="all")
            # The last group is left out, and what failed.
            effective = [one for one in made if one.traces and not one.group.id.endswith("1")]
            await monitor.log_episodes(effective, step=step, kind="train", subset="effective")
        await monitor.log_episodes(episodes(1, "eval", few=True), step=1, kind="eval", subset="all")

    def settings(chunk: int) -> SimpleNamespace:
        return SimpleNamespace(path="metrics.jsonl", chunk_bytes=chunk, compress=True, float_decimals=4)

    async def stream() -> None:
        chunks.FRAME_BYTES = 8192  # several frames in a chunk
        monitor = newest.FileMonitor(settings(38000))
        await monitor.init(folder / "stream", producer="orchestrator")
        first, second = episodes(0), episodes(1)
        evaluation = episodes(1, "eval")
        # In the order of arrival: the last of step 0 come after the first of step 1.
        arrived = [*first[:6], *second[:2], *first[6:], *evaluation[:7], *second[2:7], evaluation[7], *second[7:]]
        for one in arrived:
            work = one.run.work
            await monitor.log_episodes([one], step=work.step, kind=work.type, subset="all")
        updates = [
            make_update(made.id, info={"train": {"effective": True, "trained_at_step": one.run.work.step}})
            for one in arrived
            for made in one.traces[:1]
            if one.run.work.type == "train" and one.group.id.endswith("0")
        ]
        await monitor.log_annotations(updates)
        await monitor.log_metrics({"reward/mean": 0.5}, step=1)
        running = episode(rollouts(2)[1], 2)
        deltas = [delta for _, delta, _ in DeltaStreamer(lambda: running.traces, lambda delta: None).diff()]  # type: ignore[arg-type,return-value]
        dispatch = {"id": running.id, "kind": "train", "env": "sums", "group": running.group.id, "task": 0, "step": 2}
        await monitor.log_live([{"delta": delta, "dispatch": dispatch} for delta in deltas])
        await monitor.log_live([{"pending": "train210", "dispatch": {**dispatch, "id": "train210"}}])
        for written, _ in monitor._streams.values():
            for thread in written._sealing:
                thread.join()

    async def finished() -> None:
        monitor = newest.FileMonitor(settings(1 << 20))
        await monitor.init(folder / "finished")
        await monitor.log_episodes(episodes(1), step=1, kind="train", subset="all")
        await monitor.finalize()

    for write in (by_step, stream, finished):
        asyncio.run(write())


def write_inspect(folder: Path) -> None:
    """Logs with texts as scores, of conversations with a tool, and the latter again with samples in chunks."""
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.log._recorders.chunked import convert_eval_logs_to_chunked  # inspect log convert-chunked
    from inspect_ai.model import ChatMessageTool, ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import Score, Scorer, Target, mean, scorer
    from inspect_ai.solver import TaskState, generate, use_tools
    from inspect_ai.tool import Tool, tool

    @scorer(metrics=[mean()])
    def verdict() -> Scorer:
        async def score(state: TaskState, target: Target) -> Score:
            return Score(value="yes" if f"{{{target.text}}}" in state.output.completion else "no")

        return score

    @scorer(metrics=[mean()])
    def correct() -> Scorer:
        async def score(state: TaskState, target: Target) -> Score:
            return Score(value="C" if f"{{{target.text}}}" in state.output.completion else "I")

        return score

    @tool
    def product() -> Tool:
        async def execute(a: int, b: int) -> str:
            """Multiply.

            Args:
                a: One factor.
                b: The other.
            """
            return str(a * b)

        return execute

    def replies(tools: bool) -> Callable[..., ModelOutput]:
        # Of the conversations with a tool the first is right, and the second wrong.
        waiting = {
            question: deque(rollout.text for rollout in rollouts(prompt if tools else 0) if rollout.prompt == prompt)
            for prompt, (question, _) in enumerate(PROBLEMS)
        }
        checked = "I have checked what the tool says by hand, digit by digit, and once more from right to left. "

        def reply(messages: list[Any], *others: Any) -> ModelOutput:
            question = next(message.text for message in messages if message.role == "user")
            if tools and not isinstance(messages[-1], ChatMessageTool):
                output = ModelOutput.for_tool_call(
                    "mockllm/model", "product", {"a": 12, "b": 13}, content="I ask the tool."
                )
            else:
                output = ModelOutput.from_content("mockllm/model", checked * tools + waiting[question].popleft())
            output.usage = ModelUsage()  # counting tokens would download a tokenizer
            return output

        return reply

    samples = [Sample(question, target=truth) for question, truth in PROBLEMS]
    for where, scored, tools, epochs in (("yesno", verdict(), False, 2), ("agent", correct(), True, 1)):
        solver = [use_tools([product()]), generate()] if tools else [generate()]
        task = Task(dataset=samples, solver=solver, scorer=scored, epochs=epochs, name="sums")
        model = get_model("mockllm/model", custom_outputs=replies(tools), memoize=False)
        eval(
            task,
            model=model,
            max_samples=1,
            log_dir=str(folder / where),
            log_format="eval",
            log_realtime=False,
            display="none",
        )
    convert_eval_logs_to_chunked(str(folder / "agent"), str(folder / "chunked"))


def write_nemo_rl(folder: Path) -> None:
    """Training and validation data with the environment's remark, and conversations of two turns."""
    import torch
    from nemo_rl.utils.logger import Logger

    tokenizer = Tokenizer()

    def log_training(
        logger: Any, step: int, made: list[Rollout], logs: list[list[tuple[str, str]]], cut: set[int]
    ) -> None:
        ids, masks, lengths = [], [], []
        for row, messages in enumerate(logs):
            tokens, mask = [], []
            for i, (role, text) in enumerate(messages):
                more = tokenizer.encode(text)
                if row in cut and i == len(messages) - 1:
                    more = []  # no room for the last observation, whose text stays
                tokens += more
                mask += [int(role == "assistant")] * len(more)
            ids.append(tokens)
            masks.append(mask)
            lengths.append(len(tokens))
        width = -(-max(lengths) // 8) * 8

        def rows(values: list[list[int]]) -> torch.Tensor:
            return torch.tensor([row + [0] * (width - len(row)) for row in values])

        mask = rows(masks)
        logger.log_batched_dict_as_jsonl(
            {
                "content": [[text for _, text in messages] for messages in logs],
                "rewards": torch.tensor([float(rollout.right) for rollout in made]),
                "input_lengths": torch.tensor(lengths),
                "token_ids": rows(ids),
                "token_loss_mask": mask,
                "sample_loss_mask": torch.ones(len(made)),
                "advantages": mask * torch.tensor([rollout.advantage for rollout in made])[:, None] + 0.0,  # no -0.0
                "generation_logprobs": mask * -0.5 + 0.0,
                "prev_logprobs": mask * -0.5 + 0.0,
            },
            f"train_data_step{step}.jsonl",
        )

    def remark(rollout: Rollout) -> tuple[str, str]:
        return "environment", f"Environment: {'correct' if rollout.right else 'incorrect'}"

    off = {f"{backend}_enabled": False for backend in ("wandb", "swanlab", "tensorboard", "mlflow")}
    off["monitor_gpus"] = False
    logger = Logger({"log_dir": str(folder / "math/exp_001"), **off})
    for step in STEPS:
        made = rollouts(step)
        logs = [
            [("user", conversation(rollout.question)), ("assistant", rollout.text), remark(rollout)] for rollout in made
        ]
        log_training(logger, step, made, logs, set())
    for step in (0, 2):
        made = rollouts(step)
        logger.log_batched_dict_as_jsonl(
            {
                "content": [
                    [
                        {"role": role, "content": text}
                        for role, text in (
                            ("user", conversation(rollout.question)),
                            ("assistant", rollout.text),
                            remark(rollout),
                        )
                    ]
                    for rollout in made
                ],
                "rewards": torch.tensor([float(rollout.right) for rollout in made]),
            },
            f"val_data_step{step}.jsonl",
        )
    summary = folder / "math/exp_001/wandb/wandb/run-20261128_010203-abcd1234/files/wandb-summary.json"
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(json.dumps({"train/reward": 0.25, "train/loss": 0.5, "_step": 2, "_runtime": 12}))

    turns = Logger({"log_dir": str(folder / "turns/exp_001"), **off})
    for step in STEPS:
        made = rollouts(step)
        logs = [
            [
                ("user", conversation(rollout.question)),
                ("assistant", f"First I try \\boxed{{{1000 + rollout.index}}}."),
                ("environment", "<|im_start|>user\nCheck it, please.<|im_end|>\n<|im_start|>assistant\n"),
                ("assistant", rollout.text),
                remark(rollout),
            ]
            for rollout in made
        ]
        log_training(turns, step, made, logs, {3})


def write_slime(folder: Path) -> None:
    """Rollouts, an evaluation and dumps of the training side; rewards of NumPy, and mappings; an image."""
    import numpy as np
    import torch
    from PIL import Image
    from slime.observability.rollout_data_utils import save_debug_rollout_data
    from slime.observability.train_data_utils import _build_dump_payload
    from slime.utils.train_dump_utils import save_debug_train_data
    from slime.utils.types import Sample

    tokenizer = Tokenizer()

    def samples(step: int, reward: Callable[[Rollout], Any], evaluation: bool = False, **fields: Any) -> list[Sample]:
        made = []
        for i, rollout in enumerate(rollouts(step)):
            prompt, reply = conversation(rollout.question), f"{rollout.text}<|im_end|>"
            response = tokenizer.encode(reply)
            made.append(
                Sample(
                    group_index=None if evaluation else 2 * step + rollout.prompt,
                    index=8 * step + i,
                    prompt=prompt,
                    tokens=tokenizer.encode(prompt) + response,
                    response=reply,
                    response_length=len(response),
                    label=rollout.truth,
                    reward=reward(rollout),
                    loss_mask=None if evaluation else [1] * len(response),
                    weight_versions=[str(step)],
                    status=Sample.Status.COMPLETED,
                    **fields,
                )
            )
        return made

    def save(where: str, step: int, data: Any, evaluation: bool = False) -> None:
        save_debug_rollout_data(str(folder / where / "{rollout_id}.pt"), data, rollout_id=step, evaluation=evaluation)

    def plain(rollout: Rollout) -> float:
        return float(rollout.right)

    for step in (0, 1):
        save("math", step, samples(step, plain))
        mapping = samples(
            step,
            lambda rollout: {"score": 1.0 if rollout.right else -1.0, "acc": rollout.right, "pred": rollout.answer},
        )
        save("mapping", step, mapping)
    save("math", 1, {"sums": {"samples": samples(2, plain, evaluation=True)}}, evaluation=True)
    save("numpy", 0, samples(0, lambda rollout: np.float64(rollout.right)))
    image = Image.new("RGB", (4, 4), "red")
    save("image", 0, samples(0, plain, multimodal_inputs={"images": [image]}))

    # The training side: the same rollouts as tensors, without texts.
    made = samples(0, plain)
    data = {
        "tokens": [torch.tensor(sample.tokens) for sample in made],
        "total_lengths": [len(sample.tokens) for sample in made],
        "response_lengths": [sample.response_length for sample in made],
        "rewards": [rollout.advantage for rollout in rollouts(0)],
        "raw_reward": [sample.reward for sample in made],
        "loss_masks": [torch.tensor(sample.loss_mask, dtype=torch.int) for sample in made],
        "sample_indices": [sample.index for sample in made],
    }
    torch.distributed.get_rank = lambda group=None: 0  # as in a training
    save_debug_train_data(SimpleNamespace(save_debug_train_data=str(folder / "math")), rollout_id=0, rollout_data=data)
    shard = {"rank": 0, "data_parallel_rank": 0, "rollout_data": {**data, "partition": list(range(len(made)))}}
    torch.save(_build_dump_payload([shard], rollout_id=0, writer_rank=0), folder / "math/debug_train_v2_0_0.pt")


def write_rllm(folder: Path) -> None:
    """``episodes/train_step_1_epoch_0/episode_*.json`` with a summary of each step, and a validation."""
    from rllm.utils.episode_logger import EpisodeLogger

    def episode(rollout: Rollout, step: int) -> SimpleNamespace:
        asked = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": rollout.question}]
        turn = SimpleNamespace(
            observation=rollout.question,
            thought="",
            action=rollout.answer,
            reward=float(rollout.right),
            done=True,
            model_response=rollout.text,
            chat_completions=[*asked, {"role": "assistant", "content": rollout.text}],
            info={},
        )
        trajectory = SimpleNamespace(
            name="solver", uid=f"t{step}{rollout.prompt}{rollout.index}", reward=turn.reward, steps=[turn], info={}
        )
        return SimpleNamespace(
            id=f"{step}a{rollout.prompt}:{rollout.index}",
            session_id=None,
            task={"question": rollout.question, "ground_truth": rollout.truth, "data_source": "sums"},
            is_correct=rollout.right,
            termination_reason=SimpleNamespace(value="env_done"),
            metrics={"solver_acc": turn.reward},
            metadata={},
            info={},
            trajectories=[trajectory],
        )

    logger = EpisodeLogger(str(folder / "logs/sums/run"))
    for step in STEPS:
        logger.log_episodes_batch([episode(rollout, step) for rollout in rollouts(step)], step=step)
    logger.log_episodes_batch([episode(rollout, 0) for rollout in rollouts(0) if rollout.index < 2], step=0, mode="val")


def write_torchtitan(folder: Path) -> None:
    """``rollout_samples.jsonl``: of each group the best and the worst; two turns, and a validation."""
    from torchtitan.experiments.rl.rollout_recorder import RolloutSampleRecorder

    @dataclass
    class RolloutID:
        group_id: str
        sample_idx: int
        turn_id: int = 0

    recorder = RolloutSampleRecorder(dump_dir=str(folder))
    for step in (0, *STEPS):
        groups = []
        for prompt in range(len(PROBLEMS)):
            group = []
            for rollout in rollouts(step):
                if rollout.prompt != prompt:
                    continue
                name = f"{step}-{prompt}"
                first = [{"role": "user", "content": rollout.question}]
                tried = {"role": "assistant", "content": f"First I try \\boxed{{{1000 + rollout.index}}}."}
                checked = [{"role": "user", "content": "Check it, please."}]
                turns = [
                    SimpleNamespace(
                        rollout_id=RolloutID(name, rollout.index, turn),
                        min_policy_version=step,
                        max_policy_version=step,
                        prompt_messages=asked,
                        completion_message=said,
                        env_messages=answered,
                        env_rewards={},
                    )
                    for turn, (asked, said, answered) in enumerate(
                        (
                            (first, tried, checked),
                            ([*first, tried, *checked], {"role": "assistant", "content": rollout.text}, []),
                        )
                    )
                ]
                group.append(
                    SimpleNamespace(
                        group_id=name,
                        rollout_id=RolloutID(name, rollout.index),
                        status="completed",
                        reward=float(rollout.right),
                        reward_breakdown={"correct": float(rollout.right)},
                        advantage=rollout.advantage,
                        turns=turns,
                    )
                )
            groups.append(SimpleNamespace(rollouts=group))
        recorder.record(is_validation=step == 0, rollout_groups=groups)


def write_open_instruct(folder: Path) -> None:
    """``sums_rollouts_000000.jsonl``: token ids alone, and the metadata beside."""
    from dataclasses import asdict

    from open_instruct.rl_utils import RolloutMetadata, _save_rollouts

    tokenizer = Tokenizer()
    for step in STEPS:
        made = rollouts(step)
        batch = SimpleNamespace(
            queries=[tokenizer.encode(conversation(rollout.question)) for rollout in made],
            scores=[10.0 * rollout.right for rollout in made],
            datasets=["sums"] * len(made),
            ground_truths=[rollout.truth for rollout in made],
        )
        replies = [tokenizer.encode(f"{rollout.text}<|im_end|>") for rollout in made]
        result = SimpleNamespace(
            responses=replies, finish_reasons=["stop"] * len(made), request_info=None, logprobs=None
        )
        _save_rollouts(str(folder), "sums", step, batch, result, [rollout.advantage for rollout in made], 4, 0)
    metadata = RolloutMetadata("sums", "0000000", "words", "2026-11-28T01:02:03+00:00")
    (folder / "sums_metadata.jsonl").write_text(json.dumps(asdict(metadata)) + "\n")


WRITERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "verl": ("verl-0.9.1", write_verl),
    "skyrl": ("skyrl-0.3.0", write_skyrl),
    "areal": ("areal-1.0.4", write_areal),
    "verifiers": ("verifiers-0.4.0", write_verifiers),
    "trl": ("trl-1.16.0", write_trl),
    "inspect": ("inspect-more-0.3.285", write_inspect),
    "nemo_rl": ("nemo_rl-0275e75", write_nemo_rl),
    "slime": ("slime-4c4adbb", write_slime),
    "rllm": ("rllm-0de8298", write_rllm),
    "torchtitan": ("torchtitan-rl", write_torchtitan),
    "open_instruct": ("open_instruct", write_open_instruct),
}

if __name__ == "__main__":
    for program in sys.argv[2:]:
        folder, write = WRITERS[program]
        write(Path(sys.argv[1]) / folder)
