"""What FA4 is told about a CPU tensor, and that torch itself is told nothing."""

import ctypes
import struct
from collections import namedtuple

import pytest
import torch

from fa4verify.kernels.shipped.device_tensors import (
    CudaLabelled,
    DeviceTensor,
    TorchOnDevice,
    exported,
    extents,
    on_device,
    on_host,
)

Pair = namedtuple("Pair", "first second")


def test_whatever_comes_of_a_device_tensor_is_one_and_shares_its_memory():
    plain = torch.arange(24.0).view(2, 3, 4)
    x = on_device(plain)
    derived = [x, x.detach(), x[0], x.transpose(0, 1), x.view(torch.int32), torch.empty_like(x), x.contiguous(), x + 1]
    assert all(isinstance(y, DeviceTensor) and y.is_cuda for y in derived)
    x[0, 0, 0] = 7
    assert plain[0, 0, 0] == 7
    assert not plain.is_cuda, "torch.Tensor itself is untouched"


def test_structures_are_mapped_and_the_rest_is_left_alone():
    given = Pair([torch.zeros(1), None], (torch.zeros(2), "x", 3))
    there = on_device(given)
    assert isinstance(there, Pair)
    assert there.first[0].is_cuda
    assert there.second[0].is_cuda
    assert there.second[1:] == ("x", 3)
    back = on_host(there)
    assert type(back.first[0]) is torch.Tensor
    assert type(back.second[0]) is torch.Tensor


def test_fa4s_torch_allocates_device_tensors_full_of_nan():
    stand_in = TorchOnDevice()
    for dtype, value in ((torch.float32, None), (torch.bfloat16, None), (torch.int32, -1)):
        x = stand_in.empty(5, dtype=dtype)
        assert x.is_cuda
        assert bool(x.isnan().all()) if value is None else bool((x == value).all())
    assert stand_in.zeros(3).is_cuda
    assert float(stand_in.zeros(3).sum()) == 0
    assert stand_in.float16 is torch.float16
    assert not torch.empty(1).is_cuda
    with pytest.raises(AttributeError, match="no attribute 'emtpy'"):
        stand_in.emtpy(1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.uint8])
def test_the_capsule_is_torchs_but_for_the_device(dtype):
    """Read byte by byte as dlpack.h lays DLManagedTensor out; strides of axes of length 1 stay as they are."""
    tensor = torch.zeros(3, 5, 1, 8, dtype=dtype)[:1]
    label = CudaLabelled(tensor)
    capsule = label.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    raw = ctypes.string_at(pointer(capsule, b"dltensor"), 48)
    data, kind, index, dimensions, _, bits, lanes, shape, strides, offset = struct.unpack("<QiiiBBHQQQ", raw)
    assert (data + offset, kind, index, dimensions) == (tensor.data_ptr(), 2, 0, 4)
    assert (bits, lanes) == (8 * tensor.element_size(), 1)
    assert struct.unpack("<4q", ctypes.string_at(shape, 32)) == tuple(tensor.shape)
    assert struct.unpack("<4q", ctypes.string_at(strides, 32)) == tensor.stride()
    assert label.__dlpack_device__() == (2, 0)


def test_exported_keeps_numbers_and_nests():
    tensor = torch.zeros(2, 3)
    found = exported((tensor, None, 0.5, (tensor, 3)))
    assert found[1:3] == (None, 0.5)
    assert str(found[0].device) == str(found[3][0].device) == "cuda:0"
    assert tuple(found[0].shape) == (2, 3)


def test_extents_span_the_elements_and_merge():
    base = torch.zeros(10, 4)
    start = base.data_ptr()
    assert extents((base,)) == [(start, 160)]
    assert extents((base[2:4], None, 7)) == [(start + 32, 32)]
    assert extents((base[:, 1],)) == [(start + 4, 9 * 16 + 4)]
    assert extents((base[1:3], (base[2:5],))) == [(start + 16, 64)]
    assert extents((base[:2], base[5:])) == [(start, 32), (start + 80, 80)]
    assert extents((torch.zeros(0), torch.zeros(1, 4).expand(6, 4)[:0])) == []
    repeated = torch.zeros(1, 4).expand(6, 4)
    assert extents((repeated,)) == [(repeated.data_ptr(), 16)]
