"""Mix2 is widened by a rise over the usual distance, narrowed by a fall, and a repeated measurement changes nothing."""

from itertools import pairwise

import pytest

from loco_train.outer.policy import Judged, Widening, is_wide

RULE = Widening(rise=1.5, fall=1.2, window=3)


def judged(distances, *, rule=RULE):
    judgements, all_wide = (), []
    for round, js in enumerate(distances):
        judgements = rule.judge(judgements, round=round, js=js)
        assert judgements[-1].round == round
        all_wide.append(is_wide(judgements))
    return judgements, all_wide


@pytest.mark.parametrize(
    ("distances", "wide"),
    [
        ([0.2, 0.9, 0.1], [False] * 3),  # too few to know what is usual
        ([0.1, 0.2, 0.3, 0.3], [False] * 4),  # at the threshold, not above it
        ([0.2, 0.2, 0.2, 0.31, 0.25, 0.23], [False, False, False, True, True, False]),  # in between as it was
        ([0.2, 0.2, 0.2, 0.25, 0.2], [False] * 5),
        # The usual is the median of the last three narrow ones: it follows a slow rise, and not what is wide.
        ([0.1, 0.12, 0.14, 0.17, 0.2, 0.24, 0.29], [False] * 7),
        ([0.1, 0.1, 0.1, 0.9, 0.9, 0.9, 0.9, 0.13], [False, False, False, True, True, True, True, True]),
    ],
)
def test_switches(distances, wide):
    assert judged(distances)[1] == wide


def test_a_round_that_is_measured_again_is_judged_as_before():
    distances = [0.2, 0.21, 0.22, 0.35, 0.3, 0.2, 0.25, 0.5, 0.26, 0.1, 0.19, 0.4]
    for until, after in pairwise(range(1, len(distances))):
        judgements, _ = judged(distances[:after])
        again = RULE.judge(judgements, round=until, js=distances[until])
        assert again[-1] == judgements[-1]
        # Also where the first measurement came out otherwise, as on hardware that is not deterministic.
        other = RULE.judge(judged([*distances[:until], 9.0])[0], round=until, js=distances[until])
        assert other[-1] == judgements[-1]
        assert RULE.usual(other) == RULE.usual(judgements)


def test_only_what_is_needed_is_kept_and_it_is_enough():
    distances = [0.2 + 0.03 * ((7 * round) % 11) for round in range(60)]
    kept, wide = judged(distances)
    assert len(kept) <= RULE.window + 1 + 2
    assert 5 < sum(wide) < 55
    everything = []
    for round, js in enumerate(distances):
        usual = RULE.usual(tuple(everything))
        was = bool(everything) and everything[-1].wide
        now = usual is not None and (js > RULE.rise * usual or (was and js >= RULE.fall * usual))
        everything.append(Judged(round, js, now))
    assert [each.wide for each in everything] == wide
