from perf.studies.parallel import overlap


def test_what_two_lanes_have_in_common():
    two, inner = [[0.0, 2.0], [3.0, 5.0]], [[1.0, 4.0]]
    assert overlap.common(two, inner) == overlap.common(inner, two) == 2.0
    assert overlap.common(two, two) == 4.0
    assert overlap.common(two, []) == overlap.common([], two) == overlap.common(two, [[2.0, 3.0], [7.0, 8.0]]) == 0.0
    assert overlap.common([[1.0, 2.0], [2.0, 4.0]], [[0.0, 3.0], [3.5, 9.0]]) == 2.5  # two that touch
    assert overlap.length([[0.0, 2.0], [3.0, 5.0]]) == 4.0
