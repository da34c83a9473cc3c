"""Products with quantised weights: the native kernels beside ONNX Runtime's MatMulNBits."""
