"""A kernel of a few statements and its launch, for tests of the machine.

The kernel's registers: %rd1 out, %rd2 in, %r1 n, %r2 thread of the CTA, %r3 CTA, %r4 thread of the grid, %rd4 and %rd5
its words of out and in; all others are free.
"""

from __future__ import annotations

import struct

import numpy as np

from fa4verify import ptx

HEAD = """.version 8.8
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 dynamic[];
.visible .entry k(.param .u64 out, .param .u64 in, .param .u32 n)
.reqntid {threads}, 1, 1
{{
.reg .pred %p<20>;
.reg .b16 %rs<20>;
.reg .b32 %r<100>;
.reg .b64 %rd<40>;
ld.param.b64 %rd1, [out];
ld.param.b64 %rd2, [in];
ld.param.b32 %r1, [n];
mov.u32 %r2, %tid.x;
mov.u32 %r3, %ctaid.x;
mad.lo.s32 %r4, %r3, {threads}, %r2;
mul.wide.s32 %rd3, %r4, 4;
add.s64 %rd4, %rd1, %rd3;
add.s64 %rd5, %rd2, %rd3;
"""


def kernel(body, threads=64):
    """Read the kernel; `ret` is added."""
    return ptx.load(HEAD.format(threads=threads) + body + "\nret;\n}\n")


def run(body, *, threads=64, grid=1, given=None, n=0, size=None, **options):
    """Run the kernel; return out, one word a thread (or `size` words), and the launch's Statistics.

    body: text, or a Kernel. given: what `in` points to; numbers from 0 on where not.
    """
    ready = kernel(body, threads) if isinstance(body, str) else body
    out = np.zeros(size or ready.threads * grid, np.uint32)
    given = np.arange(ready.threads * grid, dtype=np.uint32) if given is None else given
    statistics = ready.launch(
        grid=(grid, 1, 1),
        parameters=struct.pack("<QQI", out.ctypes.data, given.ctypes.data, n),
        memory=[(x.ctypes.data, x.nbytes) for x in (out, given)],
        **options,
    )
    return out, statistics
