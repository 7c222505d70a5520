"""ONNX Runtime: a session whose inputs grow."""
import numpy
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

weight = numpy_helper.from_array(numpy.zeros((1024, 1024), "f"), "w")
nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z"]), helper.make_node("MatMul", ["z", "w"], ["out"])]
values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 1024]) for name in ("x", "out")]
graph = helper.make_graph(nodes, "g", values[:1], values[1:], [weight])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CUDAExecutionProvider"])
assert session.get_providers()[0] == "CUDAExecutionProvider"
for i in range(20):
    session.run(None, {"x": numpy.zeros((512 * (i + 1), 1024), "f")})
