"""Console output of a run: a line per step, with the time left."""

from __future__ import annotations

from datetime import timedelta
from statistics import median
from typing import Any, TextIO


class RunConsole:
    """Writes lines to ``stream``."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._total = self._last = 0
        self._durations: list[float] = []

    def say(self, line: str) -> None:
        """Write a line."""
        print(line, file=self._stream, flush=True)

    def start(self, job: Any, placement: Any, total_steps: int) -> None:
        """Report that the run has its resources and starts to load models."""
        self._total, first, folder = total_steps, job.first_step, job.config.meds.run_dir
        where = "on the CPU, with made-up GPUs" if job.on_cpu else "on GPUs"
        self.say(f"{folder}: {placement.report.plan} ({where})")
        for line in placement.report.overfull:
            self.say(f"{folder}: warning: too full by estimate: {line}. `meds plan` shows more.")
        begins = f"resuming after step {first}" if first else "starting"
        if job.resume and not first:
            begins = "no complete checkpoint, starting from step 1"
        self.say(f"{folder}: {begins}, up to step {total_steps}; loading models, this takes a while")
        if job.too_long:
            left_out = f"{job.too_long} of {job.prompts + job.too_long} prompts"
            self.say(f"{folder}: {left_out} have more than {job.longest_prompt} tokens and are left out")

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Report a finished training step."""
        self._last = step
        self._durations.append(metrics.get("timing/step_total", 0.0))
        self.say(f"{step_line(step, self._total, metrics)}{self._left(step)}")

    def done(self, folder: str) -> None:
        """Report that the run has ended by itself."""
        if 0 < self._last < self._total:  # dynamic filtering drops some
            self.say(f"{folder}: the prompts were used up before step {self._total}; raise train.num_episodes for more")
        self.say(f"{folder}: done; the trained policy is in {folder}/model")

    def _left(self, step: int) -> str:
        """The estimated time left; empty for the first steps, which include startup time."""
        if len(self._durations) < 3:
            return ""
        seconds = median(self._durations[-20:]) * (self._total - step)
        return f", {timedelta(seconds=round(seconds))} left"


def step_line(step: int, total: int, metrics: dict[str, float]) -> str:
    """``step  7/40 | reward 0.41 shaped 0.35 | penalized 30% ... | 2.9 s``, depending on the run's metrics."""
    parts = [f"step {step:>{len(str(total))}}/{total}"]
    if "meds/reward_raw" in metrics:
        parts.append(f"reward {metrics['meds/reward_raw']:.3f} shaped {metrics['meds/reward_shaped']:.3f}")
        parts.append(
            f"penalized {metrics['meds/penalized_share']:4.0%} | {metrics['meds/rows']:.0f} rows "
            f"{metrics['meds/clusters']:.0f} clusters {metrics['meds/noise_share']:.0%} noise"
        )
        ratio = metrics.get("meds/eigen_ratio_step")
        parts.append(f"eigen ratio {ratio:.2f}" if ratio is not None else "eigen ratio --")
    else:
        parts.append(f"reward {metrics.get('rollout/reward_mean', float('nan')):.3f}")
    parts.append(f"{metrics.get('timing/step_total', float('nan')):.1f} s")
    return " | ".join(parts)
