"""What the fork server imports once, so that each rank of a test starts in milliseconds instead of five seconds."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Megatron-core says at import which optional packages are absent
    import loco_train.islands  # noqa: F401
