"""What a program asks of kernels and graphs beside memory: how long they take, and how a graph is built."""

import ctypes

import torch


def test_a_kernel_that_sleeps_takes_its_cycles():
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    torch.cuda._sleep(198_000_000)
    assert not torch.cuda.current_stream().query()
    end.record()
    end.synchronize()
    assert 90 < begin.elapsed_time(end) < 200  # ms at 1.98 GHz, and what the host takes between the calls


def test_a_graph_tells_its_nodes_and_flags():
    runtime = ctypes.CDLL("libcudart.so.13")
    x, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        y = x + 1
    count, flags = ctypes.c_size_t(), ctypes.c_ulonglong(77)
    assert runtime.cudaGraphGetNodes(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(count)) == 0 and count.value > 0
    graph.instantiate()
    assert runtime.cudaGraphExecGetFlags(ctypes.c_void_p(graph.raw_cuda_graph_exec()), ctypes.byref(flags)) == 0 and flags.value != 77
    assert runtime.cudaGraphDebugDotPrint(ctypes.c_void_p(graph.raw_cuda_graph()), b"/dev/null", 0) == 0
    del y
