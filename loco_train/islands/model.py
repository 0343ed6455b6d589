"""The decoder as a list of layers, built from Megatron-core's; both engines run the same list.

Hidden states are [sequence, batch, hidden], Megatron-core's order. Tokens and labels are int64 [batch, sequence].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from deepspeed.pipe import LayerSpec, TiedLayerSpec
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    vocab_parallel_cross_entropy,
)
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec, build_module
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
from torch import Tensor
from torch.nn import Parameter
from torch.utils.checkpoint import checkpoint

from loco_train.config.schema import RunConfig
from loco_train.islands.attention import CausalAttention
from loco_train.islands.layout import Layout
from loco_train.islands.logical import LogicalParameter, mark
from loco_train.islands.rope import RotaryTable
from loco_train.shards import Partition


@dataclass(frozen=True)
class Blueprint:
    """What every layer is built from."""

    run: RunConfig
    layout: Layout
    megatron: TransformerConfig
    rotary: RotaryTable

    @staticmethod
    def of(run: RunConfig, layout: Layout) -> Blueprint:
        return Blueprint(run, layout, _megatron_config(run), RotaryTable(run.model))

    def name(self, parameter: Parameter, name: str, *, dim: int | None = None, blocks: int = 1) -> None:
        """Mark a parameter, held as this rank's piece, as the logical parameter `name` cut along `dim`."""
        shape = list(getattr(parameter, "ds_shape", parameter.shape))  # ds_shape: ZeRO 3 has cut it already
        partition = Partition()
        if dim is not None:
            shape[dim] *= self.layout.tensor
            partition = Partition(dim, blocks, self.layout.tensor_index, self.layout.tensor)
        mark(parameter, LogicalParameter(name, tuple(shape), partition))


def _megatron_config(run: RunConfig) -> TransformerConfig:
    model = run.model
    return TransformerConfig(
        num_layers=model.layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.attention_heads,
        num_query_groups=model.key_value_heads,
        kv_channels=model.head_size,
        normalization="RMSNorm",
        layernorm_epsilon=model.norm_epsilon,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,  # needs apex
        tensor_model_parallel_size=run.parallel.tensor,
        # DeepSpeed owns the pipeline; with the true degree Megatron would add a stage's offset to layer numbers again.
        pipeline_model_parallel_size=1,
        params_dtype=parameter_dtype(run),
        use_cpu_initialization=True,
        perform_initialization=False,  # weights come from initial.py, equal for every layout
    )


def parameter_dtype(run: RunConfig) -> torch.dtype:
    """Of the parameters that forward and backward use; masters are fp32."""
    return torch.bfloat16 if run.precision.parameters == "bf16" else torch.float32


class RmsNorm(torch.nn.Module):
    """Root mean square norm (arXiv 1910.07467). Built by Megatron-core with its keyword arguments."""

    def __init__(self, *, hidden_size: int, eps: float, config: TransformerConfig) -> None:
        super().__init__()
        self.weight = Parameter(torch.empty(hidden_size, dtype=config.params_dtype))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        return F.rms_norm(hidden, self.weight.shape, self.weight, self.eps)


_LAYER = ModuleSpec(
    module=TransformerLayer,
    submodules=TransformerLayerSubmodules(
        input_layernorm=RmsNorm,
        self_attention=ModuleSpec(
            module=SelfAttention,
            params={"attn_mask_type": AttnMaskType.causal},
            submodules=SelfAttentionSubmodules(
                linear_qkv=ColumnParallelLinear, core_attention=CausalAttention, linear_proj=RowParallelLinear
            ),
        ),
        self_attn_bda=get_bias_dropout_add,
        pre_mlp_layernorm=RmsNorm,
        mlp=ModuleSpec(
            module=MLP, submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
        ),
        mlp_bda=get_bias_dropout_add,
    ),
)


class Embedding(torch.nn.Module):
    """Tokens [b, s] to hidden states [s, b, h]."""

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__()
        model = blueprint.run.model
        self.word_embeddings = VocabParallelEmbedding(
            model.padded_vocab_size, model.hidden_size, init_method=None, config=blueprint.megatron
        )
        blueprint.name(self.word_embeddings.weight, "embedding.word_embeddings.weight", dim=0)

    def forward(self, tokens: Tensor) -> Tensor:
        # Contiguous because a pipeline stage may send it as it is.
        hidden: Tensor = self.word_embeddings(tokens).transpose(0, 1).contiguous()
        return hidden


class DecoderBlock(torch.nn.Module):
    """One transformer layer; `recompute: full` keeps its input only and runs it again in the backward pass."""

    def __init__(self, blueprint: Blueprint, index: int) -> None:
        super().__init__()
        self.layer = build_module(_LAYER, config=blueprint.megatron, layer_number=index + 1)
        self.rotary = blueprint.rotary
        self.recompute = blueprint.run.recompute == "full"
        prefix = f"decoder.layers.{index}"
        attention, mlp = self.layer.self_attention, self.layer.mlp
        blueprint.name(self.layer.input_layernorm.weight, f"{prefix}.input_layernorm.weight")
        blueprint.name(attention.linear_qkv.weight, f"{prefix}.self_attention.linear_qkv.weight", dim=0)
        blueprint.name(attention.linear_proj.weight, f"{prefix}.self_attention.linear_proj.weight", dim=1)
        blueprint.name(self.layer.pre_mlp_layernorm.weight, f"{prefix}.pre_mlp_layernorm.weight")
        blueprint.name(mlp.linear_fc1.weight, f"{prefix}.mlp.linear_fc1.weight", dim=0, blocks=2)
        blueprint.name(mlp.linear_fc2.weight, f"{prefix}.mlp.linear_fc2.weight", dim=1)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.recompute and torch.is_grad_enabled():
            # The reentrant form loses the gradient on the first stage, whose input (tokens) requires none.
            recomputed: Tensor = checkpoint(self._run, hidden, use_reentrant=False, preserve_rng_state=False)
            return recomputed
        return self._run(hidden)

    def _run(self, hidden: Tensor) -> Tensor:
        angles = self.rotary.angles(hidden.shape[0], device=hidden.device)
        output: Tensor = self.layer(hidden, attention_mask=None, rotary_pos_emb=angles)[0]
        return output


class FinalNorm(torch.nn.Module):
    """The norm before the output layer."""

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__()
        megatron = blueprint.megatron
        self.norm = RmsNorm(hidden_size=megatron.hidden_size, eps=megatron.layernorm_epsilon, config=megatron)
        blueprint.name(self.norm.weight, "decoder.final_layernorm.weight")

    def forward(self, hidden: Tensor) -> Tensor:
        normed: Tensor = self.norm(hidden)
        return normed


class Output(torch.nn.Module):
    """Hidden states [s, b, h] to this rank's logits [s, b, padded vocabulary / tensor].

    Logits of padding rows are set to the lowest number: they get probability and gradient zero, so that the loss is
    that of the unpadded model whatever the rows hold.
    """

    def __init__(self, blueprint: Blueprint, *, shared_weight: Parameter | None = None) -> None:
        super().__init__()
        model, layout = blueprint.run.model, blueprint.layout
        self.linear = ColumnParallelLinear(
            model.hidden_size,
            model.padded_vocab_size,
            config=blueprint.megatron,
            init_method=None,
            bias=False,
            gather_output=False,
            skip_weight_param_allocation=shared_weight is not None,
        )
        if shared_weight is None:
            blueprint.name(self.linear.weight, "output_layer.weight", dim=0)
        else:
            # As the module's own parameter: ZeRO 3 gathers what the running module holds.
            self.linear.weight = shared_weight
        columns = model.padded_vocab_size // layout.tensor
        self.real_columns = min(max(model.vocab_size - layout.tensor_index * columns, 0), columns)

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.linear(hidden)[0]
        if self.real_columns < logits.shape[-1]:
            logits[..., self.real_columns :] = torch.finfo(logits.dtype).min
        return logits


class TiedEnds(torch.nn.Module):
    """Embedding and output layer with one weight; under a pipeline the first and the last stage each hold one."""

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__()
        self.embedding = Embedding(blueprint)
        self.output = Output(blueprint, shared_weight=self.embedding.word_embeddings.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.embedding(tokens)
        return hidden


def _tied_output(ends: TiedEnds, hidden: Tensor) -> Tensor:
    logits: Tensor = ends.output(hidden)
    return logits


TIED_WEIGHT = "embedding.word_embeddings.weight"


def layer_specs(blueprint: Blueprint) -> list[LayerSpec]:
    """Embedding, blocks, norm, output: what to build for each, so that a stage builds only its own."""
    blocks = [LayerSpec(DecoderBlock, blueprint, index) for index in range(blueprint.run.model.layers)]
    first, last = LayerSpec(Embedding, blueprint), LayerSpec(Output, blueprint)
    if blueprint.run.model.tied_embeddings:
        first = TiedLayerSpec("ends", TiedEnds, blueprint, tied_weight_attr=TIED_WEIGHT)
        last = TiedLayerSpec("ends", TiedEnds, blueprint, forward_fn=_tied_output, tied_weight_attr=TIED_WEIGHT)
    return [first, *blocks, LayerSpec(FinalNorm, blueprint), last]


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy in nats, fp32, equal on every tensor parallel rank.

    logits: this rank's, [s, b, padded vocabulary / tensor]; overwritten when fp32. labels: [b, s].
    """
    losses: Tensor = vocab_parallel_cross_entropy(logits, labels.transpose(0, 1).contiguous())
    return losses.mean()


class Decoder(torch.nn.Module):
    """All layers of the list on one rank: the model without a pipeline."""

    def __init__(self, specs: list[LayerSpec]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList()
        self._calls: list[Any] = []
        tied: dict[str, torch.nn.Module] = {}
        for spec in specs:
            if isinstance(spec, TiedLayerSpec) and spec.key in tied:
                self._calls.append(lambda hidden, s=spec: s.forward_fn(tied[s.key], hidden))
                continue
            module = spec.build()
            if isinstance(spec, TiedLayerSpec):
                tied[spec.key] = module
            self.layers.append(module)
            self._calls.append(module)

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
        """The mean loss, or this rank's logits [s, b, padded vocabulary / tensor] where no labels are given."""
        state = tokens
        for call in self._calls:
            state = call(state)
        return state if labels is None else mean_loss(state, labels)
