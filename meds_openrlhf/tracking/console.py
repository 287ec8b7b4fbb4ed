"""Console output of a run: a line per step and a progress bar with the time left."""

from __future__ import annotations

from datetime import timedelta
from statistics import median
from typing import Any, TextIO

from tqdm import tqdm


class RunConsole:
    """Writes to ``stream``; on a terminal a progress bar stays below the lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: Any = None
        self._total = 0
        self._durations: list[float] = []

    def say(self, line: str) -> None:
        """Write a line."""
        tqdm.write(line, file=self._stream)
        self._stream.flush()

    def start(self, job: Any, placement: Any, total_steps: int) -> None:
        """Report that the run has its resources and starts to load models."""
        self._total, first, prompts = total_steps, job.start.step, job.prompts
        where = "on the CPU, with made-up GPUs" if job.on_cpu else "on GPUs"
        begins = f"resuming after step {first}" if first else "starting"
        if job.start.resume and not first:
            begins = "no complete checkpoint, starting from step 1"
        lines = [f"{placement.report.plan} ({where})"]
        lines += [
            f"warning: too full by estimate: {line}. `meds plan` shows more." for line in placement.report.overfull
        ]
        lines.append(f"{begins}, up to step {self._total}; loading models, this takes a while")
        if prompts.too_long:
            all_prompts = prompts.count + prompts.too_long
            lines.append(
                f"{prompts.too_long} of {all_prompts} prompts have more than {prompts.most} tokens and are left out"
            )
        for line in lines:
            self.say(f"{job.config.meds.run_dir}: {line}")
        self._bar = tqdm(
            total=self._total, initial=first, unit="step", file=self._stream, disable=None, dynamic_ncols=True
        )

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Report a finished training step."""
        self._durations.append(metrics.get("timing/step_total", 0.0))
        self.say(f"{step_line(step, self._total, metrics)}{self._left(step)}")
        if self._bar is not None:
            self._bar.update(1)

    def _left(self, step: int) -> str:
        """The estimated time left; empty for the first steps, which include startup time."""
        if len(self._durations) < 3:
            return ""
        seconds = median(self._durations[-20:]) * (self._total - step)
        return f", {timedelta(seconds=round(seconds))} left"

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


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
