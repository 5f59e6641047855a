"""The versions of torch that the extension works with, and the refusal of others."""

from __future__ import annotations

import sys

import pytest

import setup as ferro_setup
from ferro_alloc import FerroError, _load
from tests.conftest import RunProgram
from tests.programs import ROOT
from tools.versions import VERSIONS


@pytest.mark.parametrize(
    ("built", "running"),
    [
        (("2.11.0+cu130", "13.0"), ("2.11.0+cu130", "13.0")),
        (("2.11.0", "13.0"), ("2.11.1", "13.0")),
        (("2.11.0", "13.0"), ("2.11.0", "13.2")),
        (("2.11.0+cu130", "13.0"), ("2.11.0a0+git123", "13.0")),
    ],
)
def test_same_minor_version_is_accepted(
    built: tuple[str, str], running: tuple[str, str | None]
) -> None:
    _load.check_versions(built, running)


@pytest.mark.parametrize(
    ("running", "named"),
    [
        (("2.12.0+cu130", "13.0"), "torch 2.12.0+cu130 with CUDA 13.0 is running"),
        (("2.15.0", "13.2"), "torch 2.15.0 with CUDA 13.2 is running"),
        (("2.11.0+cu128", "12.8"), "torch 2.11.0+cu128 with CUDA 12.8 is running"),
        (("2.11.0+cpu", None), "torch 2.11.0+cpu has no CUDA"),
    ],
)
def test_another_torch_is_refused_before_it_can_crash(
    running: tuple[str, str | None], named: str
) -> None:
    with pytest.raises(FerroError) as caught:
        _load.check_versions(("2.11.0+cu130", "13.0"), running)
    message = str(caught.value)
    assert "built for torch 2.11.0+cu130 with CUDA 13.0" in message
    assert named in message
    assert "install" in message
    assert "\n" not in message


@pytest.mark.parametrize("version", ["2.1.1", "2.10.2", "2.16.0a0", "3.11.0"])
def test_a_torch_outside_the_range_is_refused(version: str) -> None:
    with pytest.raises(FerroError) as caught:
        _load.check_versions(("2.11.0", "13.0"), (version, "13.0"))
    message = str(caught.value)
    assert f"supports torch 2.11 to 2.15, and torch {version} is running" in message
    assert "\n" not in message


def test_the_range_is_the_same_everywhere() -> None:
    oldest, newest = _load.SUPPORTED
    assert (oldest, newest) == ferro_setup.SUPPORTED
    tested = [ferro_setup.minor_version(version.torch) for version in VERSIONS]
    assert tested == [(2, minor) for minor in range(oldest[1], newest[1] + 1)]
    assert "torch 2.11 to 2.15 for CUDA 13" in (ROOT / "README.md").read_text()
    table = (ROOT / "docs" / "compatibility.md").read_text()
    for version in VERSIONS:
        assert f"| {version.minor} | {version.torch}, CUDA {version.cuda} |" in table


def test_running_torch_is_read_without_importing_it(run_program: RunProgram) -> None:
    program = (
        "import sys\nfrom ferro_alloc import _load\nfound = _load.running_torch()\n"
        "assert 'torch' not in sys.modules\nimport torch\n"
        "assert found == (str(torch.__version__), torch.version.cuda) == _load.running_torch()\n"
    )
    run_program(program)


def test_an_unbuilt_checkout_says_how_to_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ferro_alloc._build_info", None)
    with pytest.raises(FerroError, match="is not built: run `make build`"):
        _load.built_for()
