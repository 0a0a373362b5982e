"""Admission of a GPU: its float32 functions against the floor on every input, its tables from its own answers.

`exhaust` compares, `derive` reads tables off answers, `command` is `fa4verify admit` and `fa4verify record-device`
(docs/gpu.md). Known failure mode: a device whose unit has another structure is not described by any table; `derive`
then leaves mismatches and says so.
"""
