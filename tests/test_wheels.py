"""What `make wheels` checks before a release: tags, machines, and the glibc that the kernel needs."""

import zipfile
from pathlib import Path

import pytest
from scripts import loaded

from tallystick.store import _kernel

WHEELS = loaded(Path(__file__).parents[1] / "requirements" / "wheels.py")
KERNEL = Path(str(_kernel.__file__)).read_bytes()


def wheel(folder: Path, name: str, **files: bytes) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file.replace("_so", ".so"), content)
    return path


def test_the_kernel_of_this_machine_can_be_read() -> None:
    versions = WHEELS.needed(KERNEL)
    assert any(version.startswith("GLIBC_2.") for version in versions) and "GCC_3.0" in versions
    assert (2, 2) < WHEELS.glibc(versions) < (3,)
    assert WHEELS.glibc({"GLIBC_2.9", "GLIBC_2.31", "GLIBC_2.4", "GCC_3.0"}) == (2, 31), "numbers, and not texts"


def test_a_wheel_that_promises_an_older_glibc_is_refused(tmp_path: Path) -> None:
    machine = WHEELS.machine(KERNEL)
    sound = wheel(tmp_path, f"tallystick-1.0-cp311-abi3-manylinux_2_99_{machine}.whl", _kernel_so=KERNEL)
    assert WHEELS.complaints(sound) == []
    old = wheel(tmp_path, f"tallystick-1.0-cp311-abi3-manylinux_2_5_{machine}.whl", _kernel_so=KERNEL)
    (complaint,) = WHEELS.complaints(old)
    assert "needs glibc 2." in complaint


def test_a_library_of_another_machine_is_refused(tmp_path: Path) -> None:
    other = next(each for each in ("x86_64", "aarch64") if each != WHEELS.machine(KERNEL))
    made = wheel(tmp_path, f"tallystick-1.0-cp311-abi3-manylinux_2_99_{other}.whl", _kernel_so=KERNEL)
    (complaint,) = WHEELS.complaints(made)
    assert f"is for {WHEELS.machine(KERNEL)}" in complaint


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("tallystick-1.0-cp311-abi3-linux_x86_64.whl", {"_kernel_so": KERNEL}),
        ("tallystick-1.0-cp312-cp312-manylinux_2_99_x86_64.whl", {"_kernel_so": KERNEL}),
        ("tallystick-1.0-cp311-abi3-manylinux_2_99_x86_64.whl", {}),
        ("tallystick_client-1.0-py3-none-any.whl", {"_fast_so": KERNEL}),
        ("tallystick_client-1.0-cp311-abi3-any.whl", {}),
        ("tallystick.zip", {}),
    ],
)
def test_a_wheel_with_another_tag_or_content_is_refused(tmp_path: Path, name: str, files: dict[str, bytes]) -> None:
    assert len(WHEELS.complaints(wheel(tmp_path, name, **files))) == 1


def test_wheels_of_two_versions_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (wheel(tmp_path, f"tallystick_client-{number}.0-py3-none-any.whl") for number in (1, 2))
    assert WHEELS.main([str(one)]) == 0
    assert WHEELS.main([str(one), str(other)]) == 1
    assert "2 versions: 1.0, 2.0" in capsys.readouterr().out
