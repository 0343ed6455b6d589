"""Operations of the outer step's hot path, one folder each; imports no loco_train."""

from loco_kernels.block_select import Selection as Selection
from loco_kernels.block_select import gather as gather
from loco_kernels.block_select import scatter as scatter
from loco_kernels.block_select import squares as squares
from loco_kernels.mix import mix as mix
from loco_kernels.newton_schulz import newton_schulz as newton_schulz
from loco_kernels.outer_step import outer_step as outer_step
from loco_kernels.pseudo_gradient import pseudo_gradient as pseudo_gradient
from loco_kernels.quantize import dequantize as dequantize
from loco_kernels.quantize import quantize as quantize
from loco_kernels.wire import Wire as Wire
