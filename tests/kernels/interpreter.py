"""bf16 in Triton's interpreter: as it comes, it cuts where hardware rounds, and multiplies bit patterns."""

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter


def repair_bf16() -> None:
    """Convert fp32 to bf16 and back, and multiply matrices of bf16, as torch does."""
    convert, dot = interpreter._convert_float, interpreter.InterpreterBuilder.create_dot

    def converted(data, source, target, rounding):
        if (source, target) == (tl.float32, tl.bfloat16):
            return _bits(torch.from_numpy(np.ascontiguousarray(data)).bfloat16())
        if (source, target) == (tl.bfloat16, tl.float32):
            return _float(data)
        return convert(data, source, target, rounding)

    def dotted(self, a, b, d, input_precision, max_num_imprecise_acc):
        if tl.bfloat16 in (a.dtype.scalar, b.dtype.scalar):
            a, b = (interpreter.TensorHandle(_float(x.data), tl.float32) for x in (a, b))
        return dot(self, a, b, d, input_precision, max_num_imprecise_acc)

    interpreter._convert_float = converted
    interpreter.InterpreterBuilder.create_dot = dotted


def _bits(values: torch.Tensor) -> np.ndarray:
    return values.view(torch.int16).numpy().view(np.uint16)


def _float(bits: np.ndarray) -> np.ndarray:
    return torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(torch.bfloat16).float().numpy()
