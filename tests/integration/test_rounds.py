"""Outer rounds over real islands: copies stay equal, identities with plain training hold, bytes are what is sent."""

import pytest
import torch

from loco_train.telemetry.events import RoundDone
from loco_train.telemetry.report import events_path, read_events
from loco_train.testing import World, run_islands, run_ranks
from loco_train.testing.runs import state_digests, tiny_trainer

# Norm gains and all else that a tensor parallel rank holds whole.
REPLICATED = "layernorm"


def train_and_watch(world: World, settings: dict) -> list[dict[str, str]]:
    """Digests of this rank's parameters after each outer step, whose copies are verified right then."""
    trainer = tiny_trainer(world, settings)
    seen = []
    after = trainer.evaluator.after_outer_step

    def look(progress, outer_step):
        trainer.engine.views.verify_copies()
        seen.append(state_digests(trainer))
        after(progress, outer_step)

    trainer.evaluator.after_outer_step = look
    trainer.run()
    return seen


LAYOUTS = {
    "TP 2": {"parallel.tensor": 2},
    "PP 2 tied": {"parallel.pipeline": 2, "model.tied_embeddings": True},
    "ZeRO 2": {"parallel.data": 2, "parallel.zero_stage": 2},
    "ZeRO 3": {"parallel.data": 2, "parallel.zero_stage": 3},
}


@pytest.mark.parametrize(("layout", "outer_state"), [*((layout, "device") for layout in LAYOUTS), ("TP 2", "host")])
def test_islands_are_bit_equal_after_every_outer_step(layout, outer_state, tiny_data, tmp_path):
    settings = {
        **tiny_data,
        **LAYOUTS[layout],
        "run_dir": str(tmp_path),
        "rounds": 2,
        "method.inner_steps": 3,
        "method.outer_state": outer_state,
        "precision.parameters": "bf16",
    }
    first, second = run_islands(train_and_watch, settings, islands=2, ranks=2)
    for mine, theirs in zip(first, second, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            shared = [key for key in a if key.partition("/")[0] in ("master", "base", "momentum")]
            assert shared
            assert {key: a[key] for key in shared} == {key: b[key] for key in shared}
            # Each island trained on its own samples: equal optimizer states would mean that they saw the same.
            assert any(a[key] != b[key] for key in a if key.startswith("exp_avg/"))
    if layout == "TP 2":
        for after_rank_0, after_rank_1 in zip(*first, strict=True):
            norms = [key for key in after_rank_0 if key.startswith("master/") and REPLICATED in key]
            assert len(norms) == 5
            assert all(after_rank_0[key] == after_rank_1[key] for key in norms)


def masters(world: World, settings: dict) -> dict[str, torch.Tensor]:
    trainer = tiny_trainer(world, settings)
    trainer.run()
    return {key: value.clone() for key, value in trainer.engine.views.state().items() if key.startswith("master/")}


def test_one_island_with_lr_one_and_no_momentum_is_plain_training(tiny_data, tmp_path):
    base = {**tiny_data, "rounds": 1, "method.inner_steps": 6}
    outer = {"method.outer.lr": 1.0, "method.outer.momentum": 0.0}
    diloco = {**base, **outer, "run_dir": str(tmp_path / "diloco")}
    plain = {**base, "method.rule": "none", "method.mix2.peers": "nobody", "run_dir": str(tmp_path / "plain")}
    (got,), (expected,) = run_ranks(masters, diloco, ranks=1), run_ranks(masters, plain, ranks=1)
    for key, value in expected.items():
        # start - (start - end) misses end by half an ulp of the difference, which is no larger than one of start or
        # end; the six steps of at most lr 4e-4 move a value by less than 3e-3.
        bound = torch.finfo(torch.float32).eps * (value.abs() + 3e-3)
        assert ((got[key] - value).abs() <= bound).all(), key


def test_one_sgd_step_with_lr_one_and_no_momentum_is_data_parallel(tiny_data, tmp_path):
    sgd = {"optimizer.kind": "sgd", "optimizer.lr": 0.1, "optimizer.clip_grad_norm": 0.0, "schedule.kind": "constant"}
    base = {**tiny_data, **sgd, "schedule.warmup_fraction": 0.0, "optimizer.weight_decay": 0.0}
    base |= {"rounds": 4, "method.inner_steps": 1, "method.outer.lr": 1.0, "method.outer.momentum": 0.0}
    islands = run_islands(masters, {**base, "run_dir": str(tmp_path / "two"), "batch.island": 8}, islands=2, ranks=1)
    # Islands take contiguous halves of a round's samples, so one island with twice the batch sees the same ones.
    single = {
        **base,
        "run_dir": str(tmp_path / "one"),
        "batch.island": 16,
        "method.rule": "none",
        "method.mix2.peers": "nobody",
    }
    (expected,) = run_ranks(masters, single, ranks=1)
    for key, value in expected.items():
        # Means of 16 sequences are summed in another order: 4 steps of 0.1 times a gradient below 1 whose relative
        # error is a few 1e-7.
        torch.testing.assert_close(islands[0][0][key], value, rtol=0, atol=1e-6)


def train(world: World, settings: dict) -> None:
    tiny_trainer(world, settings).run()


def test_bytes_reported_are_the_payloads_and_those_on_the_sockets(tiny_data, tmp_path):
    settings = {
        **tiny_data,
        "run_dir": str(tmp_path),
        "model.hidden_size": 256,
        "model.ffn_hidden_size": 512,
        "parallel.tensor": 2,
        "rounds": 2,
        "method.inner_steps": 1,
    }
    run_islands(train, settings, islands=2, ranks=2)
    rounds = [e for e in read_events(events_path(tmp_path, 0)) if isinstance(e, RoundDone)]
    assert len(rounds) == 2
    # Two islands: each sends its whole fp32 payload once, over both ranks together every owned parameter.
    vocab, hidden, ffn, layers = 304, 256, 512, 2
    attention = (4 + 2 * 2 + 4) * 64 * hidden
    parameters = 2 * vocab * hidden + layers * (attention + 3 * hidden * ffn + 2 * hidden) + hidden
    for event in rounds:
        assert event.bytes_sent == pytest.approx(4 * parameters, rel=0.001)  # shards are padded to 512 bytes
        assert event.socket_bytes_sent == pytest.approx(event.bytes_sent, rel=0.03)
        assert event.spread_l2 > 0
        assert event.pseudo_gradient_norm > 0
