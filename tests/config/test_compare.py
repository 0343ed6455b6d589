"""Which settings may differ between a checkpoint and the run that resumes from it."""

import pytest

from loco_train.config.compare import FREE_SETTINGS, differences, flatten, shared_settings
from loco_train.testing.tiny import tiny_run


@pytest.mark.parametrize("setting", FREE_SETTINGS)
def test_each_free_setting_is_a_setting(setting):
    # A renamed setting would otherwise become binding without a word.
    value = tiny_run()
    for part in setting.split("."):
        assert part in type(value).model_fields, setting
        value = getattr(value, part)


def test_settings_that_change_the_result_are_all_compared():
    before = tiny_run().model_dump(mode="json")
    changes = {
        "seed": 5,
        "rounds": 9,
        "model.rope_theta": 5.0,
        "method.inner_steps": 7,
        "method.outer.lr": 0.1,
        "batch.island": 16,
        "optimizer.betas": (0.5, 0.6),
        "schedule.kind": "linear",
        "precision.parameters": "bf16",
        "parallel.data": 2,
        "data.tokenizer": "other",
    }
    after = tiny_run(changes).model_dump(mode="json")
    found = {key: (old, new) for key, old, new in differences(before, after)}
    assert found.keys() == changes.keys()
    assert found["optimizer.betas"] == ([0.9, 0.95], [0.5, 0.6])
    assert found["seed"] == (1234, 5)


def test_where_a_run_goes_may_change():
    before = tiny_run().model_dump(mode="json")
    free = {
        "run_dir": "elsewhere",
        "network.interface": "eth1",
        "checkpoint.keep_last": 5,
        "telemetry.console": False,
        "evaluation.sequences": 4,
        "recompute": "full",
        "optimizer.implementation": "torch",
        "islands.rendezvous": "host:1",
    }
    assert differences(before, tiny_run(free).model_dump(mode="json")) == []


POLICY = {"health.every_rounds": 1, "health.policy": {"window": 4}}
GOSSIP = {"method": {"rule": "progress", "mix1": {"peers": "all"}, "mix2": {"peers": "nobody"}}}


def test_how_health_is_measured_binds_where_something_follows_from_it():
    watched = tiny_run({"health.every_rounds": 2}).model_dump(mode="json")
    assert differences(tiny_run().model_dump(mode="json"), watched) == []
    decided = tiny_run(GOSSIP | POLICY).model_dump(mode="json")
    rarely = tiny_run(GOSSIP | POLICY | {"health.every_rounds": 3}).model_dump(mode="json")
    assert differences(decided, rarely) == [("health.every_rounds", 1, 3)]
    never = tiny_run(GOSSIP).model_dump(mode="json")
    assert ("health.policy.window", 4, "(absent)") in differences(decided, never)
    measured = {"blocks": "measured", "budget": "1MB", "peers": "random-pair"}
    chosen = GOSSIP | {"method": GOSSIP["method"] | {"mix2": measured}}
    more = tiny_run(chosen | {"health.sequences": 4}).model_dump(mode="json")
    assert differences(tiny_run(chosen).model_dump(mode="json"), more) == [("health.sequences", None, 4)]


@pytest.mark.parametrize("setting", [{"evaluation.every_rounds": 2}, {"health.every_rounds": 2}])
def test_what_islands_do_together_must_be_the_same_for_all_of_them(setting):
    one, other = tiny_run().model_dump(mode="json"), tiny_run(setting).model_dump(mode="json")
    assert shared_settings(one) != shared_settings(other)
    assert differences(one, other) == []


def test_settings_that_only_one_side_has_are_differences():
    assert differences({"a": {"b": 1}}, {"a": {"c": 1}}) == [("a.b", 1, "(absent)"), ("a.c", "(absent)", 1)]
    assert differences({"rope": None}, {"rope": {"factor": 2}}) == [
        ("rope", None, "(absent)"),
        ("rope.factor", "(absent)", 2),
    ]
    assert flatten({"a": {"b": {"c": [1, {"d": 2}]}}, "e": {}}) == {"a.b.c": [1, {"d": 2}], "e": {}}
    # A tuple became a list on its way through the manifest.
    assert differences({"betas": [0.9, 0.95]}, {"betas": (0.9, 0.95)}) == []
