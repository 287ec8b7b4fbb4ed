"""HDBSCAN over the features of each prompt: many sets in one call, compiled, without the GIL. Pure functions.

The same rows in the same order give the same labels on every machine, with every number of shards and after a resume,
regardless of which other prompts are clustered in the same call. With min_samples = 1, the paper's setting, the mutual
reachability of two rows is their distance, so the hierarchy is the single linkage tree. The steps follow the
publications (Campello, Moulavi and Sander 2013; McInnes and Healy 2017; Malzer and Baum 2020 for epsilon) and give the
same labels as the hdbscan package, including its infinite densities and float32 sums:

    rows -> minimum spanning tree -> single linkage tree -> condensed tree -> excess of mass, epsilon -> labels

A density (lambda) is the inverse of a distance. If distances tie, the row with the lower number comes first in every
step. All compiled code is in this file, because numba's cache detects changes only in the file of the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar

import numba  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.config.method import Method

NOISE = -1
# The automatic epsilon is a factor times a quantile of distances. Chosen by simulation; see docs/clustering.md.
NEIGHBOR_QUANTILE = 0.75  # of the distinct rows' distances to their nearest neighbours
NEIGHBOR_FACTOR = 2.0
FARTHEST = 0.45  # the limit of epsilon, in RMS lengths of the rows; rows farther from all others are scatter

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Labels = NDArray[np.int32]
Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile ``function`` with numba at its first call; division by zero gives infinity or NaN, as in numpy.

    The result is cached next to the module or in the user's cache folder, if one of them is writable.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        decorated: Function = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # "no locator available": no cache folder is writable
        decorated = numba.njit(**options)(function)
    return decorated


def cluster_sets(features: Floats, offsets: Integers, method: Method) -> Labels:
    """Return labels (n,) int32 of g sets: within each, clusters are numbered from 0, and noise is -1.

    Set i is rows ``offsets[i]`` to ``offsets[i + 1]`` of ``features`` (n, d); ``offsets`` (g + 1,) rises from 0 to n.
    A set with a single row is noise, unless ``method.algorithm`` is "equal". Raises ValueError for other offsets and
    for non-finite values.
    """
    offsets = plain(offsets, np.int64)
    # Compiled code does not check bounds.
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(features) or (np.diff(offsets) < 0).any():
        raise ValueError(f"offsets: must rise from 0 to the number of rows, {len(features)}")
    if not np.isfinite(features).all():
        raise ValueError("features: hold NaN or infinite values")
    if method.algorithm in ("hdbscan", "robust"):
        robust = method.algorithm == "robust"
        epsilon = math.nan if robust else 0.0
        return hdbscan_sets(plain(features, np.float64), offsets, method.min_cluster_size, robust, epsilon)
    cluster_one = _cluster_equal if method.algorithm == "equal" else _cluster_by_library
    labels = np.full(len(features), NOISE, dtype=np.int32)
    for start, stop in pairwise(offsets):
        labels[start:stop] = cluster_one(features[start:stop], method.min_cluster_size)
    return labels


def plain(array: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    """Return the array as compiled code expects it; numba would compile a second version for read-only arrays."""
    return np.require(array, dtype, ["C", "W"])


def _cluster_equal(points: Floats, _min_cluster_size: int) -> list[int]:
    known: dict[bytes, int] = {}
    return [known.setdefault(key, len(known)) for key in keys_of(points)]


def keys_of(points: Floats) -> list[bytes]:
    """Return bytes (n) that are the same for equal rows of ``points`` (n, d), also for 0.0 and -0.0."""
    return [row.tobytes() for row in points + np.float32(0)]


def _cluster_by_library(points: Floats, min_cluster_size: int) -> Labels:
    """Return labels (n,) by the hdbscan package's defaults, which include an approximate spanning tree."""
    if len(points) < 2:
        return np.full(len(points), NOISE, np.int32)
    import hdbscan  # takes a second to import, and the other algorithms do not need it

    model = hdbscan.HDBSCAN(min_cluster_size=min_cluster_size, min_samples=1, core_dist_n_jobs=1)
    labels: Labels = model.fit(np.array(points, np.float64)).labels_.astype(np.int32)  # fit wants a writable copy
    return labels


# ── compiled ──


@compiled
def hdbscan_sets(
    features: Floats, offsets: Integers, min_cluster_size: int, allow_single_cluster: bool, epsilon: float
) -> Labels:
    """Return labels (n,) of g sets: rows ``offsets[i]`` to ``offsets[i + 1]`` of ``features`` (n, d) are set i.

    ``epsilon`` is the distance below which clusters are not split: 0 for no limit, NaN to use `automatic_epsilon` and
    drop scatter; other values than 0 allow a single cluster. The arrays must be C-contiguous and writable, and the
    values finite; this function checks nothing.
    """
    labels = np.full(len(features), np.int32(NOISE))
    for i in range(len(offsets) - 1):
        begin, end = offsets[i], offsets[i + 1]
        if end - begin >= 2:
            labels[begin:end] = _cluster(features[begin:end], min_cluster_size, allow_single_cluster, epsilon)
    return labels


@compiled
def automatic_epsilon(left: Integers, right: Integers, heights: Floats, farthest: float) -> float:
    """Return epsilon for a set of n rows, from the (n - 1,) children and rising heights of its single linkage tree.

    The height at which a row is first joined, the distance to its nearest neighbour, gives the scale of a mode and
    never spans the gap between two. Twice the upper quartile of these distances joins a whole mode. Copies count as one
    row; rows farther than ``farthest`` from all others do not count. If no row counts, the result is ``farthest``. If
    at least half of the rows have copies and epsilon would join all of these, the result is 0, so that each repeated
    row stays a cluster: a few answers that are repeated verbatim look like one loose mode.
    """
    count = len(heights) + 1
    nearest = np.empty(count)  # distance of each distinct row that counts, in rising order
    distinct = single = 0
    repeats = np.zeros(2 * count - 1, np.bool_)  # whether a node contains a row that has copies
    between = np.inf  # the greatest height at which two such nodes are joined
    for i in range(count - 1):
        repeats[count + i] = heights[i] == 0.0 or repeats[left[i]] or repeats[right[i]]
        if heights[i] == 0.0:
            continue
        if repeats[left[i]] and repeats[right[i]]:
            between = heights[i]
        for child in (left[i], right[i]):
            single += child < count
            if heights[i] <= farthest and (child < count or heights[child - count] == 0.0):
                nearest[distinct] = heights[i]
                distinct += 1
    if distinct == 0:
        return farthest
    epsilon = min(NEIGHBOR_FACTOR * nearest[int(NEIGHBOR_QUANTILE * (distinct - 1))], farthest)
    word_for_word = 2 * single <= count and epsilon > between
    return 0.0 if word_for_word else epsilon


@compiled
def drop_scatter(labels: Labels, lambdas: Floats, farthest: float, min_cluster_size: int) -> None:
    """Relabel rows as noise, in place, if they are farther than ``farthest`` from the rest of their cluster.

    Excess of mass gives a cluster all rows that it had at its birth, and makes two distant rows a cluster if they are
    nearer to each other than to the rest. ``lambdas`` (n,) are the densities at which rows leave their clusters.
    Clusters left with fewer than ``min_cluster_size`` rows are dissolved; the others are renumbered in order.
    """
    labels[lambdas * farthest < 1.0] = NOISE
    sizes = np.zeros(len(labels), np.int64)
    for label in labels:
        if label != NOISE:
            sizes[label] += 1
    kept = sizes >= min_cluster_size
    numbers = np.where(kept, np.cumsum(kept) - 1, NOISE)
    for row in range(len(labels)):
        if labels[row] != NOISE:
            labels[row] = numbers[labels[row]]


@compiled
def _cluster(points: Floats, min_cluster_size: int, allow_single_cluster: bool, epsilon: float) -> Labels:
    """Return the labels (n,) of one set of at least two rows."""
    left, right, heights, sizes = _single_linkage(*_spanning_tree(points))
    automatic = math.isnan(epsilon)
    farthest = FARTHEST * math.sqrt((points * points).sum() / len(points)) if automatic else np.inf
    if automatic:
        epsilon = automatic_epsilon(left, right, heights, farthest)
    row_cluster, row_lambda, parent, first_child, birth, stability = _condense(
        left, right, heights, sizes, min_cluster_size
    )
    selected = _excess_of_mass(parent, first_child, stability, allow_single_cluster)
    if epsilon != 0.0 and not selected[0]:
        selected = _merge_below(epsilon, selected, parent, birth)
    labels = _label(selected, parent, birth, row_cluster, row_lambda, epsilon)
    if automatic:
        drop_scatter(labels, row_lambda, farthest, min_cluster_size)
    return labels


@compiled
def _spanning_tree(points: Floats) -> tuple[Integers, Integers, Floats]:
    """Run Prim's algorithm from row 0; return (n - 1,) sources, targets and lengths of the edges in insertion order."""
    count, dims = points.shape
    outside = np.ascontiguousarray(points.T)  # columns: rows not yet in the tree, without gaps, for vectorized loops
    row = np.arange(count)  # row number of each column
    nearest = np.full(count, np.inf)  # squared distance of each column to the tree
    source = np.zeros(count, np.int64)  # the row of the tree at that distance
    bits = nearest.view(np.int64)  # in the same order, as no distance is negative; its minimum is vectorized
    squared = np.empty(count)
    sources = np.empty(count - 1, np.int64)
    targets = np.empty(count - 1, np.int64)
    weights = np.empty(count - 1)
    column = 0
    for step in range(count - 1):
        newest = row[column]
        left = count - 1 - step  # columns that remain; the last one moves into the gap
        row[column], nearest[column], source[column] = row[left], nearest[left], source[left]
        for k in range(dims):
            outside[k, column] = outside[k, left]
        squared[:left] = 0.0
        whole = dims - dims % 2
        for k in range(0, whole, 2):  # summed by dimension, two in a pass
            p, q = points[newest, k], points[newest, k + 1]
            for j in range(left):
                x, y = outside[k, j] - p, outside[k + 1, j] - q
                squared[j] = squared[j] + x * x + y * y
        for k in range(whole, dims):
            for j in range(left):
                difference = outside[k, j] - points[newest, k]
                squared[j] += difference * difference
        for j in range(left):
            closer = squared[j] < nearest[j]
            nearest[j] = squared[j] if closer else nearest[j]
            source[j] = newest if closer else source[j]
        smallest = bits[0]
        for j in range(1, left):
            smallest = min(smallest, bits[j])
        column = -1
        for j in range(left):
            if bits[j] == smallest and (column < 0 or row[j] < row[column]):
                column = j
        sources[step], targets[step], weights[step] = source[column], row[column], math.sqrt(nearest[column])
    return sources, targets, weights


@compiled
def _single_linkage(
    sources: Integers, targets: Integers, weights: Floats
) -> tuple[Integers, Integers, Floats, Integers]:
    """Return left and right children and heights (n - 1,) of the inner nodes, and sizes (2n - 1,) of all nodes.

    Nodes below n are rows; node n + i joins the two components that the i-th shortest edge connects.
    """
    count = len(weights) + 1
    above = np.full(2 * count - 1, -1)
    left = np.empty(count - 1, np.int64)
    right = np.empty(count - 1, np.int64)
    sizes = np.ones(2 * count - 1, np.int64)
    order = np.argsort(weights, kind="mergesort")  # stable: equal edges keep their order
    for i in range(count - 1):
        left[i], right[i] = _top(above, sources[order[i]]), _top(above, targets[order[i]])
        above[left[i]] = above[right[i]] = count + i
        sizes[count + i] = sizes[left[i]] + sizes[right[i]]
    return left, right, weights[order], sizes


@compiled
def _top(above: Integers, node: int) -> int:
    """Return the root above ``node``, and halve the path to it."""
    while above[node] != -1:
        if above[above[node]] != -1:
            above[node] = above[above[node]]
        node = above[node]
    return node


@compiled
def _condense(
    left: Integers, right: Integers, heights: Floats, sizes: Integers, min_cluster_size: int
) -> tuple[Integers, Floats, Integers, Integers, Floats, Floats]:
    """Build the condensed tree from the top; a split counts if both sides have at least ``min_cluster_size`` rows.

    Returns per row (n,) the cluster that it falls out of and the lambda of that event, and per cluster the parent, the
    first of its two children (0 if none), the lambda of its birth and its stability. Clusters are numbered breadth
    first; 0 is the root.
    """
    count = len(left) + 1
    row_cluster = np.empty(count, np.int64)
    row_lambda = np.empty(count)
    parent = np.zeros(count, np.int64)  # clusters are fewer than rows
    first_child = np.zeros(count, np.int64)
    birth = np.zeros(count)
    stability = np.zeros(count)
    clusters = 1
    queue = np.empty(count, np.int64)  # nodes that are still clusters; `cluster_of` has the cluster of each
    cluster_of = np.empty(count, np.int64)
    queue[0], cluster_of[0] = 2 * count - 2, 0
    waiting = 1
    stack = np.empty(count, np.int64)
    head = 0
    while head < waiting:
        node, cluster = queue[head] - count, cluster_of[head]
        head += 1
        lambda_ = 1.0 / heights[node]
        gain = lambda_ - birth[cluster]
        sides = (left[node], right[node])
        split = sizes[sides[0]] >= min_cluster_size and sizes[sides[1]] >= min_cluster_size
        if split:
            first_child[cluster] = clusters
        for side in sides:
            if split:
                parent[clusters], birth[clusters] = cluster, lambda_
                stability[cluster] += gain * sizes[side]
                queue[waiting], cluster_of[waiting] = side, clusters
                clusters += 1
                waiting += 1
            elif sizes[side] >= min_cluster_size:
                queue[waiting], cluster_of[waiting] = side, cluster
                waiting += 1
            else:
                stack[0] = side
                height = 1
                while height:
                    height -= 1
                    below = stack[height]
                    if below >= count:
                        stack[height], stack[height + 1] = left[below - count], right[below - count]
                        height += 2
                    else:
                        row_cluster[below], row_lambda[below] = cluster, lambda_
                        stability[cluster] += gain  # row by row: sums round as in the reference
    return (
        row_cluster, row_lambda, parent[:clusters], first_child[:clusters], birth[:clusters], stability[:clusters],
    )  # fmt: skip


@compiled
def _excess_of_mass(parent: Integers, first_child: Integers, stability: Floats, allow_single_cluster: bool) -> Flags:
    """Return which clusters are selected: those more stable than their descendants and below no selected cluster."""
    clusters = len(parent)
    selected = np.ones(clusters, np.bool_)
    for cluster in range(clusters - 1, -1, -1):  # children come after their parents
        child, below = first_child[cluster], np.float32(0.0)
        if child:  # hdbscan adds and compares in single precision
            below = np.float32(np.float32(stability[child]) + stability[child + 1])
        if below > stability[cluster]:
            selected[cluster] = False
            stability[cluster] = below
    if not allow_single_cluster:
        selected[0] = False
    covered = np.zeros(clusters, np.bool_)
    for cluster in range(1, clusters):
        covered[cluster] = covered[parent[cluster]] or selected[parent[cluster]]
        if covered[cluster]:
            selected[cluster] = False
    return selected


@compiled
def _merge_below(epsilon: float, selected: Flags, parent: Integers, birth: Floats) -> Flags:
    """Replace clusters that were split off at less than ``epsilon`` by their first ancestor that was not."""
    merged = np.zeros_like(selected)
    for cluster in range(1, len(parent)):
        if not selected[cluster]:
            continue
        top = cluster
        if 1.0 / birth[cluster] < epsilon:
            top = parent[cluster]
            while top != 0 and 1.0 / birth[top] <= epsilon:
                top = parent[top]
        merged[top] = True
    return merged


@compiled
def _label(
    selected: Flags, parent: Integers, birth: Floats, row_cluster: Integers, row_lambda: Floats, epsilon: float
) -> Labels:
    """Number the selected clusters and return the labels (n,); rows of no selected cluster are noise.

    If the root is the only cluster, it keeps only rows that fall out of it at a distance of at most ``epsilon``;
    without epsilon, only rows that are still in it at its first split, or at the end. If there is another cluster,
    split off at exactly ``epsilon``, the root gets a number but no rows, as in hdbscan.
    """
    number = np.full(len(parent), np.int32(NOISE))  # of the selected cluster at or above each cluster
    alone = selected.sum() == 1
    found = 0
    for cluster in range(len(parent)):
        if selected[cluster]:
            if cluster > 0 or alone:
                number[cluster] = found
            found += 1
        elif cluster > 0:
            number[cluster] = number[parent[cluster]]
    densest = 0.0
    if selected[0] and alone:
        densest = 1.0 / epsilon if epsilon != 0.0 else birth[1] if len(parent) > 1 else row_lambda.max()
    labels = number[row_cluster]
    labels[row_lambda < densest] = NOISE
    return labels
