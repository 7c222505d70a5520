"""The tests of operators that ONNX brings along, under ONNX Runtime on the GPU: what its own onnx_backend_test_series.py makes of them."""
import onnx.backend.test
import onnxruntime.backend

MADE = onnx.backend.test.BackendTest(onnxruntime.backend, __name__)
MADE.include(r".*_cuda$")
globals().update(MADE.enable_report().test_cases)
