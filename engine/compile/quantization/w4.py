"""w4: the blocks of int4, multiplied with half-precision activations on an NPU."""

from engine.compile.arguments import Quant
from engine.compile.quantization.int4 import multiply_blocks, store_blocks
from engine.compile.quantization.method import Activations, CodeChoice, Method

# Four bits a weight and a half-precision scale for each block of 32.
W4 = Method(
    Quant.W4,
    Activations.FLOAT16,
    store_blocks,
    multiply_blocks,
    bytes_per_weight=0.5 + 2 / 32,
    choice=CodeChoice(in_half=True),
)
