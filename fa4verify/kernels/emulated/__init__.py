"""CPU models of kernels, bit for bit.

fa4_sm90, fa4_sm100 and flash2 are descriptions of one loop: `launch` goes from torch tensors to rows and back, `online`
walks the KV tiles that `visibility` names, and one of `softmax_sm90`, `softmax_sm100` turns scores into P.
`tuning_sm100` holds what FA4 chooses for a shape on Blackwell. `standard` stands alone.
"""
