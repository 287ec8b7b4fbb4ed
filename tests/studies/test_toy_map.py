"""The toy behind the map: its methods are those of the training, and all start from the same world."""

import numpy as np
import pytest

from meds_openrlhf.shaping.weights import KAPPA
from studies.toy_map import METHODS, Cell, Step, World, drawn_map, lines_of, right_share, train

CELL = Cell(kinds=8, returns=30, right=0.02)


def test_a_world_has_the_share_of_right_responses_that_its_cell_says() -> None:
    for cell in (CELL, Cell(kinds=2, returns=3, right=0.2)):
        world = World(cell, 0)
        assert right_share(world.held_out, world.held_out_right, world.first).mean() == pytest.approx(
            cell.right, rel=0.01
        )
        assert len(world.x) == round(9600 / cell.returns)


def test_advantages_of_every_method() -> None:
    sizes = np.array([[0, 0, 0, 0], [9, 9, 4, 0], [3, 3, 3, 15]])
    wrong = np.array([[True, True, True, False], [True, True, True, False], [True] * 4])
    found = {name: method(Step(sizes, wrong, 0)) for name, method in METHODS.items()}
    assert set(found) == {
        "dapo",
        "meds",
        "meds-uncapped",
        "weights",
        "weights-shuffled",
        "extras",
        "weights-extras",
        "pass-at-k",
    }
    for name, advantages in found.items():
        assert np.allclose(advantages[0], found["dapo"][0]) or name == "pass-at-k"  # a first visit
        assert (advantages[wrong] <= 0).all()
    assert found["dapo"][2].tolist() == [0] * 4
    assert found["extras"][2].tolist() == [-KAPPA] * 4
    assert found["weights-extras"][2].mean() == -KAPPA > found["weights-extras"][2, 3]
    ratios = found["weights"][1, :3] / found["dapo"][1, :3]
    assert ratios == pytest.approx([1.2, 1.2, 0.6])
    assert found["weights"][1].sum() == pytest.approx(0)


def test_training_helps_and_is_the_same_each_time() -> None:
    world = World(Cell(kinds=4, returns=30, right=0.06), 1)
    first, again = train(world, "weights", 1), train(world, "weights", 1)
    assert first == again
    assert first["pass@1/train"] > 0.5


def test_a_line_for_each_method_and_a_figure_of_them() -> None:
    import pandas as pd

    lines = lines_of(CELL, 2)
    assert [line["method"] for line in lines] == list(METHODS)
    assert drawn_map(pd.DataFrame(lines)).axes
