"""Every form of a fit holds exactly the same float32 numbers and says where they come from."""

import ast
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from rich.console import Console

from fa4verify.exp2 import emit
from fa4verify.exp2.certify import certify
from fa4verify.exp2.fit import Fit
from fa4verify.exp2.merit import merit
from fa4verify.exp2.remez import Shape
from fa4verify.exp2.sets import CoefficientSet, parse

WORDS = "0x1.fffffep-1,0x1.62e4e4p-1,0x1.ebd7bp-3,0x1.c93e0cp-5,0x1.26f5a4p-7,0x1.eaea32p-10"


@pytest.fixture(scope="module")
def found():
    coefficients = parse(WORDS).coefficients
    chosen = CoefficientSet("fit:5:max", coefficients, "floor", "fa4verify exp2 fit: degree 5, p0 free; objective max")
    figures = merit(chosen.float32)
    return Fit(chosen, Shape(5, "free"), ("max",), figures, certify(coefficients), 7.4936e-8, 1000, 1.5, figures.max)


def test_the_row_is_python_and_exact(found):
    row = emit.poly_ex2_row(found)
    table = ast.literal_eval("{\n" + row + "\n}")
    assert table == {5: found.chosen.coefficients}
    assert found.chosen.provenance in row
    # Exact decimals, digit for digit, and not merely numbers that round to the same float.
    assert "0.999999940395355224609375," in row


def test_the_c_array_compiles_to_the_same_bits(found, tmp_path):
    text = emit.c_array(found)
    assert found.chosen.provenance in text
    words = re.findall(r"(0x[0-9a-f.]+p[+-]\d+)f", text)
    assert tuple(float.fromhex(word) for word in words) == found.chosen.coefficients
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    source = tmp_path / "array.c"
    loop = 'for (int k = 0; k < 6; k++) { unsigned u; memcpy(&u, exp2_p5 + k, 4); printf("%08X\\n", u); }'
    source.write_text(f"#include <stdio.h>\n#include <string.h>\n{text}\nint main(void) {{ {loop} return 0; }}\n")
    subprocess.run([compiler, "-std=c99", str(source), "-o", str(tmp_path / "array")], check=True)
    printed = subprocess.run([str(tmp_path / "array")], check=True, capture_output=True, text=True).stdout.split()
    assert printed == [emit.bits(value) for value in found.chosen.coefficients]


def test_json_is_a_set_again(found, tmp_path):
    path = tmp_path / "set.json"
    path.write_text(emit.as_json([found]))
    again = parse(str(path))
    assert (again.coefficients, again.name, again.provenance, again.range_reduction) == (
        found.chosen.coefficients, found.chosen.name, found.chosen.provenance, "floor",
    )  # fmt: skip
    content = json.loads(path.read_text())
    assert [float(np.uint32(int(word, 16)).view(np.float32)) for word in content["bits"]] == list(again.coefficients)
    assert [float(word) for word in content["decimal"]] == list(again.coefficients)
    assert content["max_over_all_x"] == found.merit.max
    assert content["sup_norm"]["lower"] <= content["sup_norm"]["upper"]
    assert any("NaN" in hazard for hazard in content["hazards"])
    assert len(json.loads(emit.as_json([found, found]))["front"]) == 2


def test_the_terminal_shows_ratios_forms_and_hazards(found):
    console = Console(record=True, width=100, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123 - for its record
    emit.terminal([found], console)
    text = console.export_text()
    console.file.close()
    assert "0x1.fffffep-1" in text
    assert "3F7FFFFF" in text
    assert "HAZARD" in text
    assert f"{found.merit.max / 1.5567345817854275e-07:.3f}" in text


def test_exact_decimals():
    assert emit.decimal(1.0) == "1.0"
    assert emit.decimal(0.077119089663028717041015625) == "0.077119089663028717041015625"
    assert emit.bits(-0.0) == "80000000"
