"""Layer selection, differences and scaling, on numbers small enough to check by hand."""

import numpy as np
import pytest

from meds_openrlhf.config.schema import FeatureSettings, MedsSettings, MemorySettings
from meds_openrlhf.features.kind import transform_of
from meds_openrlhf.features.transform import FeatureTransform

LOGITS = np.array([[1.0, 2.0, 4.0, 8.0], [0.0, 0.0, 3.0, 4.0]], dtype=np.float32)


def test_last_half_scaled_to_unit_length_is_the_default() -> None:
    features = FeatureTransform()(LOGITS)
    assert features.dtype == np.float64
    np.testing.assert_allclose(features, [[4 / 80**0.5, 8 / 80**0.5], [0.6, 0.8]])
    np.testing.assert_allclose(FeatureTransform()(np.array([[9.0, 9.0, 0.3, 0.4]])), [[0.6, 0.8]])
    np.testing.assert_array_equal(FeatureTransform()(np.zeros((1, 4))), [[0, 0]])
    assert FeatureTransform().select(np.ones((1, 5))).shape == (1, 2)  # rounded down


@pytest.mark.parametrize(
    ("settings", "first_row"),
    [
        ({"layers": "all"}, [1, 2, 4, 8]),
        ({"layers": 4}, [1, 2, 4, 8]),
        ({"layers": 3}, [2, 4, 8]),
        ({"layers": 0.75}, [2, 4, 8]),
        ({"layers": "last-half", "difference": "before"}, [2, 4]),  # the ablation's 14-diff
        ({"layers": "all", "difference": "before"}, [1, 2, 4]),  # 28-diff
        ({"layers": "last-half", "difference": "after"}, [4]),
        ({"layers": 3, "difference": "after"}, [2, 4]),
    ],
)
def test_selection(settings: dict, first_row: list[float]) -> None:
    np.testing.assert_array_equal(FeatureTransform(**settings).select(LOGITS)[0], first_row)
    np.testing.assert_array_equal(FeatureTransform(**settings, normalize="none")(LOGITS)[0], first_row)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        FeatureTransform()(np.array([[1.0, bad]]))


def test_the_preset_for_equal_vectors_leaves_them_as_they_are() -> None:
    """Of a function that returns a category: scaled to unit length, all positive numbers are 1."""
    features = FeatureSettings(function="category.py")
    kinds = np.array([[1.0], [2.0]], np.float32)
    for preset, equal in (("equal", False), ("paper", True)):
        transform = transform_of(MedsSettings(run_dir="r", features=features, memory=MemorySettings(preset=preset)))
        first, second = transform(kinds).tolist()
        assert (first == second) == equal


def test_layers_beyond_the_model_are_refused() -> None:
    assert FeatureTransform(layers=1).dimensions(4) == 1
    assert FeatureTransform(layers=2, difference="after").dimensions(4) == 1
    with pytest.raises(ValueError, match=r"meds.features.layers=1: selects 1 of 4 layers. It must select 2 to 4"):
        FeatureTransform(layers=1, difference="after").dimensions(4)
    with pytest.raises(ValueError, match=r"meds.features.layers=9: selects 9 of 4 layers. It must select 1 to 4"):
        FeatureTransform(layers=9)(LOGITS)
