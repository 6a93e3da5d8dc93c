"""fp16: as fp32; the weight files of half-precision graphs round every float to float16."""

from engine.compile.arguments import Quant
from engine.compile.quantization.fp32 import multiply_floats, store_floats
from engine.compile.quantization.method import Activations, Method

FP16 = Method(Quant.FP16, Activations.FLOAT16, store_floats, multiply_floats, bytes_per_weight=2)
