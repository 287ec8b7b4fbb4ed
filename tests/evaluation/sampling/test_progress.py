"""What is read where there is no terminal."""

import io

from meds_openrlhf.evaluation.sampling.progress import Progress


def test_a_line_at_every_tenth() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    with progress.of("policy", total=50, present=4, right=4):
        for _ in range(23):
            progress.add(2, 1)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "policy: 6 of 50 samples, pass@1 0.83"
    assert [int(line.split()[1]) for line in lines] == [6, 10, 16, 20, 26, 30, 36, 40, 46, 50]
    assert lines[-1] == "policy: 50 of 50 samples, pass@1 0.54"
