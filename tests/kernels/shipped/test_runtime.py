"""A compiled host function is linked to us, and every launch of it arrives as it was written."""

import struct

import pytest

pytest.importorskip("flash_attn.cute", exc_type=ImportError)

import torch
from cutlass import Float32, cute
from flash_attn.cute.cute_dsl_utils import to_cute_tensor

from fa4verify.kernels.shipped import runtime
from fa4verify.kernels.shipped.compiler import taken_apart
from fa4verify.kernels.shipped.device_tensors import exported, on_device
from fa4verify.kernels.shipped.host import compiling
from fa4verify.kernels.shipped.objects import renamed
from fa4verify.kernels.shipped.target import TARGETS

from .doubling import Doubling

DEVICE = runtime.Device((9, 0), 132, 227 * 1024)


def compiled(**options):
    x, y = (on_device(torch.zeros(256)) for _ in range(2))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    with compiling(TARGETS["sm_90a"]):
        kernel = Doubling(**options)
        given = (to_cute_tensor(x), to_cute_tensor(y), Float32(1))
        return taken_apart(cute.compile(kernel, *given, stream, options="--enable-tvm-ffi"))


@pytest.fixture(scope="module")
def plain():
    return compiled()


def launches(function, *arguments, **settings):
    found = []
    runtime.run(function, exported(arguments), device=DEVICE, receiver=found.append, **settings)
    return found


def test_a_launch_arrives_with_grid_and_parameters(plain):
    function = runtime.load(plain.object_file, "fa4verify")
    for length in (256, 1, 65, 1000):
        x, y = torch.zeros(length), torch.zeros(length)
        parameters = []

        def receive(launch, into=parameters):
            into.append((launch, launch.parameters([("x", 0, 16), ("y", 16, 16), ("f", 32, 4)], 36)))

        runtime.run(function, exported((x, y, 2.5)), device=DEVICE, receiver=receive)
        ((launch, block),) = parameters
        assert (launch.grid, launch.block) == ((-(-length // 64), 1, 1), (64, 1, 1))
        assert (launch.cluster, launch.cooperative, launch.shared_bytes) == ((1, 1, 1), False, 0)
        assert launch.kernel in plain.ptx
        assert struct.unpack_from("<Q", block, 0)[0] == x.data_ptr()
        assert struct.unpack_from("<Q", block, 16)[0] == y.data_ptr()
        assert struct.unpack_from("<f", block, 32)[0] == 2.5


def test_clusters_and_shared_memory_arrive():
    both = compiled(cluster=2, shared_bytes=4096)
    (launch,) = launches(runtime.load(both.object_file, "fa4verify"), torch.zeros(256), torch.zeros(256), 1.0)
    assert (launch.grid, launch.cluster, launch.shared_bytes) == ((4, 1, 1), (2, 1, 1), 4096)


def test_what_the_receiver_raises_comes_out_and_the_function_still_works(plain):
    function = runtime.load(plain.object_file, "fa4verify")
    arguments = exported((torch.zeros(64), torch.zeros(64), 1.0))

    def refuse(launch):
        raise ZeroDivisionError(launch.kernel[:6])

    for error in (refuse, refuse):
        with pytest.raises(ZeroDivisionError, match="kernel"):
            runtime.run(function, arguments, device=DEVICE, receiver=error)
    assert len(launches(function, torch.zeros(64), torch.zeros(64), 1.0)) == 1


def test_a_launch_may_call_another_host_function(plain):
    outer, inner = (runtime.load(plain.object_file, "fa4verify") for _ in range(2))
    seen = []

    def nested(launch):
        seen.append(launch.grid)
        seen.extend(one.grid for one in launches(inner, torch.zeros(640), torch.zeros(640), 1.0))

    runtime.run(outer, exported((torch.zeros(64), torch.zeros(64), 1.0)), device=DEVICE, receiver=nested)
    assert seen == [(1, 1, 1), (10, 1, 1)]


def test_arguments_of_the_wrong_type_are_tvms_error(plain):
    function = runtime.load(plain.object_file, "fa4verify")
    with pytest.raises(ValueError, match="expected dtype=float32"):
        launches(function, torch.zeros(64, dtype=torch.float64), torch.zeros(64), 1.0)


def test_a_runtime_function_without_a_stand_in_is_refused_by_name(plain):
    strange = renamed(plain.object_file, {"_cudaGetDevice": "_cudaUnheardOf"})
    with pytest.raises(runtime.RuntimeMismatch, match="_cudaUnheardOf"):
        runtime.load(strange, "fa4verify")


def test_questions_without_an_answer_are_refused():
    assert DEVICE.attribute(97) == 227 * 1024
    assert (DEVICE.attribute(75), DEVICE.attribute(76), DEVICE.attribute(16)) == (9, 0, 132)
    with pytest.raises(runtime.RuntimeMismatch, match="device attribute 98"):
        DEVICE.attribute(98)


def test_outside_of_run_nothing_is_launched(plain):
    function = runtime.load(plain.object_file, "fa4verify")
    launches(function, torch.zeros(64), torch.zeros(64), 1.0)
    with pytest.raises(RuntimeError, match="stand-in for the CUDA runtime"):
        function(*exported((torch.zeros(64), torch.zeros(64), 1.0)))
