"""Every command of docs/benchmarks.md runs somewhere in these tests: a benchmark that breaks is noticed here."""

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "benchmarks.md").read_text(encoding="utf-8")


def test_every_benchmark_of_the_page_is_run_at_its_smallest_size() -> None:
    named = set(re.findall(r"python -m benchmarks\.(\w+)", PAGE))
    run = set()
    for path in HERE.glob("test_*.py"):
        if re.search(r"\.main\(|subprocess\.run\(", path.read_text(encoding="utf-8")):
            run.add(path.stem.removeprefix("test_"))
    assert named
    assert named <= run, f"no test runs {', '.join(sorted(named - run))}"
