"""Errors say what to do, end the program with a code of their own, and cross process borders whole."""

import pickle

import pytest

from loco_train import errors
from loco_train.errors import ConfigError, DeadlineExceeded, LocoError, TransportError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LocoError)]


def test_the_message_has_a_line_for_each_part():
    error = ConfigError("rounds is wrong", got=0, allowed="1 or more", fix="set rounds")
    assert str(error) == "rounds is wrong\n  got: 0\n  allowed: 1 or more\n  to do: set rounds"
    assert str(ConfigError("rounds is wrong")) == "rounds is wrong"


@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_pickled_with_all_their_parts(kind):
    error = pickle.loads(pickle.dumps(kind("problem", got=[1], allowed={"a": 2}, fix="do")))
    assert type(error) is kind
    assert (error.problem, error.got, error.allowed, error.fix) == ("problem", [1], {"a": 2}, "do")


def test_each_kind_has_an_exit_code_of_its_own():
    direct = [kind for kind in KINDS if kind.__base__ is LocoError]
    codes = [kind.exit_code for kind in direct]
    assert len(set(codes)) == len(codes)
    # 0 is success, 1 a bug's traceback, 128 and more are signals.
    assert all(1 < code < 128 for code in codes)
    assert DeadlineExceeded.exit_code == TransportError.exit_code
