"""Names lead to kernels without importing them; wrong names say where they broke."""

import subprocess
import sys

import pytest

from fa4verify import kernels
from fa4verify.kernels import registry


def test_looking_up_names_imports_nothing_heavy():
    program = (
        "import sys, fa4verify.kernels as k; k.names(); [k.availability(n) for n in k.names()]; "
        "print(*{'torch', 'numba', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_name_has_a_description_and_a_state():
    assert {"standard", "fa4-sm90", "fa4-sm100", "flash2", "flash-attn-4", "fa4@sm_90a"} <= set(kernels.names())
    assert all(kernels.names().values())
    assert kernels.availability("standard") is None
    assert "GPU" in kernels.availability("flash-attn-4")


def test_without_fa4_its_own_kernels_say_what_they_need(monkeypatch):
    def nothing_installed(name):
        raise registry.PackageNotFoundError(name)

    monkeypatch.setattr(registry, "version", nothing_installed)
    with pytest.raises(kernels.Unsupported, match="needs flash-attn-4 and nvidia-cutlass-dsl, not installed"):
        kernels.kernel("fa4@sm_90a")
    assert kernels.availability("fa4-sm90") is None


def test_the_named_kernel_is_a_kernel_of_that_name():
    standard = kernels.kernel("standard")
    assert isinstance(standard, kernels.Kernel)
    assert standard.name == "standard"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("standrad", "did you mean 'standard'"),
        ("zzz", "known: standard, fa4-sm90"),
        ("no_such_package.at_all:f", "cannot import 'no_such_package.at_all': ModuleNotFoundError"),
        ("math:logg", "no attribute 'logg' in 'math'; did you mean 'log'"),
        ("math:pi", "is a float; expected a function"),
        ("collections:OrderedDict", "is a class"),
    ],
)
def test_a_wrong_name_gets_one_line(name, message):
    with pytest.raises(kernels.UnknownKernel) as caught:
        kernels.kernel(name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_module_that_raises_on_import_is_told_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "broken_on_import.py").write_text("raise RuntimeError('line one\\nline two')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(kernels.UnknownKernel, match="RuntimeError: line one line two"):
        kernels.kernel("broken_on_import:f")


@pytest.mark.parametrize(("code", "told"), [("0", "code 0"), ("'no GPU'", "code 'no GPU'")])
def test_a_module_that_exits_on_import_leads_nowhere(tmp_path, monkeypatch, code, told):
    (tmp_path / f"exits_{len(code)}.py").write_text(f"raise SystemExit({code})\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(kernels.UnknownKernel, match=f"exits when imported .{told}"):
        kernels.kernel(f"exits_{len(code)}:f")


def test_an_emulation_of_8_bits_alone_does_not_stop_compiling_ahead(monkeypatch):
    """A worker that raised there would take every case of its suite with it."""
    name = "standard-fp8"
    monkeypatch.setattr(registry, "_REGISTRY", {name: registry._REGISTRY[name]})
    registry.compile_ahead()
