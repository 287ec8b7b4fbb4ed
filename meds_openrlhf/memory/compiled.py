"""What numba compiles: HDBSCAN of many sets, and the vote of the nearest rows.

Nothing else imports numba, and this module is imported when it is called: without it, equal answers are still
clustered. All compiled code is in this file, because numba's cache detects changes only in the file of the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numba  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.memory.sets import NEIGHBORS, NOISE, Floats, Integers, Labels, Sets

# The automatic epsilon is a factor times a quantile of distances. Chosen by simulation; see docs/clustering.md.
NEIGHBOR_QUANTILE = 0.75  # of the distinct rows' distances to their nearest neighbors
NEIGHBOR_FACTOR = 2.0
FARTHEST = 0.45  # the limit of epsilon, in RMS lengths of the rows; rows farther from all others are scatter

Flags = NDArray[np.bool_]
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

    The height at which a row is first joined, the distance to its nearest neighbor, gives the scale of a mode and
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


@compiled
def vote_nearest(sets: Sets, assigned: Labels) -> None:
    """Fill ``assigned`` (m,) for all sets that have stored rows."""
    offsets, new_offsets = sets.offsets, sets.new_offsets
    dimensions = sets.stored.shape[1]
    longest = np.diff(offsets).max() if len(offsets) > 1 else 0
    columns = np.empty((dimensions, longest))  # stored rows of a set as unit vectors, transposed
    similarity = np.empty(longest)
    near_similarity = np.empty(NEIGHBORS)
    near_label = np.empty(NEIGHBORS, dtype=np.int32)
    for group in range(len(offsets) - 1):
        first, count = offsets[group], offsets[group + 1] - offsets[group]
        if count == 0 or new_offsets[group] == new_offsets[group + 1]:
            continue
        for row in range(count):
            squares = 0.0
            for column in range(dimensions):
                squares += sets.stored[first + row, column] * sets.stored[first + row, column]
            scale = 1.0 / np.sqrt(squares) if squares > 0.0 else 1.0
            for column in range(dimensions):
                columns[column, row] = sets.stored[first + row, column] * scale
        for query in range(new_offsets[group], new_offsets[group + 1]):
            # The loop over rows is inside, and each row's terms are summed in the order of its dimensions: fast without
            # reordering sums, so exact duplicates get exactly equal similarities. The query's length does not matter.
            similarity[:count] = 0.0
            for dimension in range(dimensions):
                value, column_values = sets.new[query, dimension], columns[dimension]
                for row in range(count):
                    similarity[row] += value * column_values[row]
            voters = _nearest(similarity, sets.labels[first : first + count], near_similarity, near_label)
            # The nearest row wins, unless the other two of three agree.
            winner = 1 if voters == 3 and near_label[1] == near_label[2] else 0
            assigned[query] = near_label[winner]


@compiled
def _nearest(similarity: Floats, labels: Labels, near_similarity: Floats, near_label: Labels) -> int:
    """Put the labels of the nearest rows into ``near_label`` (k,), nearest first; return their number."""
    filled = 0
    for row in range(len(labels)):
        if filled == len(near_label) and similarity[row] <= near_similarity[filled - 1]:
            continue  # not among the nearest: by far the most frequent case
        place = min(filled, len(near_label) - 1)
        while place > 0 and similarity[row] > near_similarity[place - 1]:
            near_similarity[place], near_label[place] = near_similarity[place - 1], near_label[place - 1]
            place -= 1
        near_similarity[place], near_label[place] = similarity[row], labels[row]
        filled = min(filled + 1, len(near_label))
    return filled
