"""Networks of narrow types against other engines: in bf16 (`networks`), quantised by ONNX Runtime (`quantised`), and a
decoder's step with weights of bf16, of bytes or of four bits (`decoder_step`). Products alone are in
`benchmarks.narrow_products`."""
