"""Problems of reasoning-gym: made from a seed, each tried before it is written."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meds_openrlhf.cli.main import main
from meds_openrlhf.data import gym
from meds_openrlhf.data.questions import qwen_math_prompt
from meds_openrlhf.gym.problem import GymProblem, made_of
from meds_openrlhf.rewards.grading import verdict

pytestmark = pytest.mark.needs("reasoning_gym")

SMALL = ["--set", "min_terms=2", "--set", "max_terms=2", "--set", "min_digits=1", "--set", "max_digits=1"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows(path: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def make(*words: str) -> int:
    return main(["data", "prepare", *words])


def test_training_and_held_out_problems_are_disjoint_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert make("gym:chain_sum", "--size", "120", "--held-out", "40", *SMALL) == 0
    train, held_out = rows("data/chain_sum/train.jsonl"), rows("data/chain_sum/chain_sum.jsonl")
    questions = [row["question"] for row in (*train, *held_out)]
    assert len(set(questions)) == len(questions) == len({row["id"] for row in (*train, *held_out)})
    counts = json.loads(Path("data/chain_sum/train.counts.json").read_text())["sets"]["chain_sum"]
    assert counts["read"] == 120 == counts["kept"] + sum(counts["dropped"].values())
    assert counts["dropped"].keys() == {"duplicate", "in a benchmark"}
    assert counts["kept"] == len(train)
    assert capsys.readouterr().out.endswith(
        f"{len(train)} problems in data/chain_sum/train.jsonl\n"
        f"{len(held_out)} problems in data/chain_sum/chain_sum.jsonl\n"
    )
    row = held_out[0]
    assert row["prompt"] == qwen_math_prompt(row["question"])
    assert (row["datasource"], row["level"], row["id"][:10]) == ("chain_sum", "", "chain_sum-")
    answer = made_of(row["answer"]).answer
    assert verdict(f"\\boxed{{{answer}}}", row["answer"]) == (answer, True)
    assert verdict(f"\\boxed{{{answer}1}}", row["answer"])[1] is False


def test_data_are_the_same_bytes_again_and_held_out_ones_stay() -> None:
    for out, size, seed in (("one", "30", "3"), ("two", "30", "3"), ("more", "60", "3"), ("other", "30", "1000")):
        make("gym:chain_sum", "gym:lcm", "--size", size, "--held-out", "10", "--seed", seed, "--out", out)
    for name in ("train", "chain_sum", "lcm"):
        assert Path(f"one/{name}.jsonl").read_bytes() == Path(f"two/{name}.jsonl").read_bytes()
        assert Path(f"one/{name}.jsonl").read_bytes() != Path(f"other/{name}.jsonl").read_bytes()
    # Their labels name the number of all problems, on which those of some tasks depend.
    shown = [[{**row, "answer": ""} for row in rows(f"{out}/lcm.jsonl")] for out in ("one", "more")]
    assert shown[0] == shown[1]
    assert Counter(row["datasource"] for row in rows("one/train.jsonl")) == {"chain_sum": 30, "lcm": 30}


def test_an_instruction_replaces_the_box() -> None:
    make("gym:codeio", "--size", "40", "--out", "boxed")
    make("gym:codeio", "--size", "40", "--out", "plain", "--instruction", "End with Answer: and your answer.")
    system = "<|im_start|>system\nEnd with Answer: and your answer.<|im_end|>\n"
    assert rows("plain/train.jsonl")[0]["prompt"].startswith(system)
    dropped = json.loads(Path("boxed/train.counts.json").read_text())["sets"]["codeio"]["dropped"]
    assert dropped["answer fits no box"] > 0
    assert "answer fits no box" not in Path("plain/train.counts.json").read_text()


def test_problems_that_cannot_be_trained_on_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[dict[str, Any]] = [{}, {"answer": "7 apples"}, {"answer": " "}, {"answer": ""}]
    changes += [{"question": "<|im_end|>"}, {"question": ""}]

    def changed(text: str) -> GymProblem:
        problem = made_of(text)
        return replace(problem, **changes[problem.label.index])

    with monkeypatch.context() as patch:
        patch.setattr(gym, "made_of", changed)
        make("gym:chain_sum", "--size", "6", "--set", "allow_negation=false", "--set", "min_terms=2")
    counts = json.loads(Path("data/chain_sum/train.counts.json").read_text())["sets"]["chain_sum"]
    assert counts["dropped"] == {"no question": 1, "no answer": 2, "chat marker": 1, "own answer wrong": 1}
    # An answer that its scorer may not evaluate: it calls Integral.
    weights = "problem_type_weights=[0,0,0,0,1,0,0,0]"
    make("gym:intermediate_integration", "--size", "9", "--out", "integrals", "--set", weights)
    counts = json.loads(Path("integrals/train.counts.json").read_text())["sets"]["intermediate_integration"]
    assert counts["dropped"] == {"own answer wrong": 6}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gym:chain_sun", "SET=gym:chain_sun: is not a task of reasoning-gym. Did you mean chain_sum?"),
        ("gym:propositional_logic", "SET=gym:propositional_logic: has no answers, so its scorer cannot be checked"),
        (
            "gym:composite",
            "SET=gym:composite: is refused by gym:composite (AssertionError: Must specify at least",
        ),
        ("gym:ab --set lenght=3", "--set=lenght=3: is refused by gym:ab ("),
        *[(f"gym:ab --set {word}", f"--set={word}: is refused by gym:ab (") for word in ("length=-1", "length=many")],
        ("gym:ab gym:bf --set length=3", "--set=length=3: is refused by gym:bf ("),
        ("gym:ab --size 0", "--size=0: must be at least 1"),
        ("gym:ab --held-out -1", "--held-out=-1: must be at least 0"),
        ("gym:ab --seed -1", "--seed=-1: must be at least 0"),
        ("gym:ab --set operators=+exit()*", "SET=gym:ab: operators='+exit()*' is not a number, a word, an operator or"),
        ("gym:ab --threshold 1.5", "--threshold=1.5: must be above 0 and at most 1"),
        ("gym:ab --instruction <|im_end|>", "--instruction=<|im_end|>: contains a chat marker"),
        ("math --size 3", "--size=3: "),
    ],
)
def test_bad_input_is_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert make(*words.split()) == 2
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert message in output, output
    assert not Path("data").exists()
