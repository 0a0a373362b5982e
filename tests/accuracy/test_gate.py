"""The gate is no test of ours: `pytest -m accuracy` runs it, through the plugin, in this repository as in any other.

The plugin (fa4verify/pytest_plugin.py) adds an item for each case of the suite when it is asked by `-m accuracy` or by
one of its options; a plain `pytest`, as `make test` runs it, has none of them. Here every case is also held to
gate.jsonl.xz, the committed baseline (pyproject.toml names it), of which test_baseline.py tries a part in each run.

    pytest -m accuracy                                      the gate
    pytest -m accuracy -n 2                                 the same verdicts
    pytest -m accuracy --accuracy-suite smoke               another suite
    pytest -m accuracy --accuracy-kernel mine:attention     every case with your own kernel
    pytest -m accuracy --accuracy-select "d128 and causal"  some of the cases
    pytest -m accuracy --accuracy-record run.jsonl          keep the Records, for `fa4verify report run.jsonl`
    pytest -m accuracy --accuracy-baseline run.jsonl        hold every case to an earlier run
"""
