"""CUDA_VISIBLE_DEVICES under PyTorch: which devices a process sees, and which processes it shares them with."""

import os
import subprocess
import sys
import textwrap

import pytest

import simulated

torch = pytest.importorskip("torch")

MIB = 1 << 20


def machine(name: str) -> str:
    """A shape that the processes of this test share with each other, and with no other run."""
    return f"{simulated.SHAPE},machine:{name}-{os.getpid()}"


def test_devices_in_the_order_of_the_list():
    simulated.forked(
        """
        import torch
        assert torch.cuda.device_count() == 2 == torch._C._cuda_getDeviceCount()
        assert [torch.cuda.get_device_properties(i).pci_bus_id for i in range(2)] == [3, 1]
        numbers = torch.arange(1000)
        assert torch.equal(numbers.to("cuda:1").to("cuda:0").cpu(), numbers)
        try:
            torch.ones(1, device="cuda:2")
        except RuntimeError as error:
            assert "invalid device ordinal" in str(error)
        else:
            raise AssertionError("device 2 is not there")
        """,
        CUDA_VISIBLE_DEVICES="2,0",
        whole=True,
    )


def test_a_uuid_is_as_good():
    uuid = str(torch.cuda.get_device_properties(2).uuid)
    simulated.forked(
        f"""
        import torch
        assert torch._C._cuda_getDeviceCount() == 1
        assert str(torch.cuda.get_device_properties(0).uuid) == "{uuid}"
        """,
        CUDA_VISIBLE_DEVICES=f"GPU-{uuid[:8]}",
        whole=True,
    )


def test_no_device():
    simulated.forked(
        """
        import torch
        assert torch.cuda.device_count() == 0 and not torch.cuda.is_available()
        try:
            torch.ones(1, device="cuda")
        except RuntimeError as error:
            assert "No CUDA GPUs are available" in str(error)
        else:
            raise AssertionError("there is a device")
        """,
        CUDA_VISIBLE_DEVICES="",
        whole=True,
    )


def test_set_by_the_program_before_it_uses_cuda():
    """Many programs set it after `import torch`, even after devices were counted."""
    simulated.forked(
        """
        import os, torch
        assert torch.cuda.device_count() == 4
        os.environ["CUDA_VISIBLE_DEVICES"] = "3"
        assert torch.cuda.device_count() == 1
        assert torch.cuda.get_device_properties(0).pci_bus_id == 4
        assert torch.cuda.device_count() == 1
        """,
        whole=True,
    )


def test_memory_of_another_process_is_on_the_same_device():
    """One process holds memory on its device 1; the other process, for which that is device 0, sees less free memory there."""
    simulated.forked(
        f"""
        import os, subprocess, sys, torch
        keep = torch.empty({500 * MIB}, dtype=torch.uint8, device="cuda:1")
        free = [torch.cuda.mem_get_info(i)[0] for i in range(2)]
        code = "import torch; print(*[torch.cuda.mem_get_info(i)[0] for i in range(2)])"
        other = subprocess.run([sys.executable, "-c", code], env=dict(os.environ, CUDA_VISIBLE_DEVICES="0,1"), check=True,
                               capture_output=True, text=True)
        at_0, at_1 = map(int, other.stdout.split())
        context = {300 * MIB}
        assert at_0 == free[1] - context, (at_0, free)      # its 0 is our 1
        assert at_1 == {4096 * MIB} - context, at_1         # no other process uses it
        assert [torch.cuda.mem_get_info(i)[0] for i in range(2)] == free
        """,
        shape=machine("memory"),
        CUDA_VISIBLE_DEVICES="2,0",
        whole=True,
    )


SHARE = """
    import os, torch, torch.multiprocessing as mp

    def receive(queue, answers, visible):
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
        try:
            tensor = queue.get()
            answers.put((torch.cuda.get_device_properties(tensor.device).pci_bus_id, tensor.nbytes))
            del tensor
        except Exception as error:
            answers.put(str(error))

    if __name__ == "__main__":
        spawn = mp.get_context("spawn")
        queue, answers = spawn.Queue(), spawn.Queue()
        child = spawn.Process(target=receive, args=(queue, answers, VISIBLE))
        child.start()
        tensor = torch.empty(30 << 20, dtype=torch.uint8, device="cuda:0")
        queue.put(tensor)
        print(answers.get(timeout=60))
        child.join()
"""


@pytest.mark.parametrize("visible, answer", [("3,1", "(4, 31457280)"), ("1,2", "invalid device ordinal")])
def test_a_tensor_of_another_process(tmp_path, visible, answer):
    """A tensor on device 3: a process that sees that device can open the tensor; another process gets an error that says so."""
    program = tmp_path / "share.py"
    program.write_text(f"VISIBLE = {visible!r}\n" + textwrap.dedent(SHARE))
    env = simulated.environment(machine("tensor"), CUDA_VISIBLE_DEVICES="3")
    done = subprocess.run([sys.executable, str(program)], env=env, timeout=120, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert answer in done.stdout, done.stdout + done.stderr
