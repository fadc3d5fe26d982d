#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the wheel of the package `zerod` with libzerod.so.0, or installs the content of that wheel.

    pip wheel client/python               pip takes this file as its backend (PEP 517)
    backend.py wheel FOLDER               the wheel into the folder
    backend.py install [PREFIX]           into this interpreter's environment, or PREFIX/lib/pythonX.Y/site-packages
    backend.py modules FOLDER             without the library, for a distribution, whose loader finds it

This needs only Python: no other package and no network. The library is $BUILD/lib/libzerod.so.0, which `make` has built ($BUILD:
build). This wheel is not self-contained: like the daemon it needs libprotobuf-c. With $BUNDLE, a folder that packaging/bundle.sh
has made, the wheel is self-contained: it also has the programs, all libraries that they need except libc, and all licences.
"""
from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any, Iterable, Optional

HERE = Path(__file__).resolve().parent
LIBRARY = "libzerod.so.0"
VERSION = re.findall(r'^__version__ = "(.*)"', (HERE / "zerod" / "__init__.py").read_text(), re.MULTILINE)[0]
INFO = f"zerod-{VERSION}.dist-info"
PURE_TAG = "py3-none-any"
TAG = "py3-none-" + re.sub(r"[-.]", "_", sysconfig.get_platform())
METADATA = f"""\
Metadata-Version: 2.1
Name: zerod
Version: {VERSION}
Summary: Python interface of libzerod: sharded training over a per-node daemon that owns the memory
License: Apache-2.0
Requires-Python: >=3.9
Provides-Extra: numpy
Requires-Dist: numpy; extra == "numpy"
Provides-Extra: torch
Requires-Dist: torch>=2.4; extra == "torch"
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: zerod\nRoot-Is-Purelib: {}\nTag: {}\n"


PROGRAMS = ("zerod", "zeroctl", "zerobench")
PLUGINS = "[vllm.general_plugins]\nzerod = zerod.integrations.engines:register\n"
SCRIPTS = "[console_scripts]\n" + "".join(f"{name} = zerod.private:run_program\n" for name in PROGRAMS)
BUNDLE = os.environ.get("BUNDLE")


def _library() -> Path:
    if BUNDLE:
        return Path(BUNDLE, "lib", LIBRARY)
    build = Path(os.environ.get("BUILD") or "build")
    found = HERE.parents[1] / build / "lib" / LIBRARY
    if not found.exists():
        raise SystemExit(f"{found} does not exist: `make` builds it, and BUILD names another folder")
    return found


def _files(library: bool = True) -> "dict[str, bytes]":
    """The wheel's files by path, with RECORD last."""
    sources = [path for path in sorted((HERE / "zerod").rglob("*")) if path.suffix == ".py" or path.name == "py.typed"]
    files = {path.relative_to(HERE).as_posix(): path.read_bytes() for path in sources}
    if library:
        files[f"zerod/{LIBRARY}"] = _library().read_bytes()
    if library and BUNDLE:
        files.update(_bundled(Path(BUNDLE)))
    files[f"{INFO}/METADATA"] = METADATA.encode()
    files[f"{INFO}/WHEEL"] = WHEEL.format(*("false", _tag(files)) if library else ("true", PURE_TAG)).encode()
    files[f"{INFO}/entry_points.txt"] = (PLUGINS + (SCRIPTS if library and BUNDLE else "")).encode()
    files[f"{INFO}/RECORD"] = ("".join(_record(files)) + f"{INFO}/RECORD,,\n").encode()
    return files


def _bundled(bundle: Path) -> "dict[str, bytes]":
    files = {f"zerod/bin/{name}": (bundle / "bin" / name).read_bytes() for name in PROGRAMS}
    licences = [HERE.parents[1] / "LICENSE", *sorted((bundle / "share" / "zerod" / "licenses").iterdir())]
    files.update({f"{INFO}/licenses/{path.name}": path.read_bytes() for path in licences})
    return files


def _tag(files: "dict[str, bytes]") -> str:
    """The tag of a self-contained wheel names the newest glibc whose functions the files use (PEP 600). Otherwise TAG."""
    if not BUNDLE:
        return TAG
    minor = max(int(found) for content in files.values() for found in re.findall(rb"GLIBC_2\.(\d+)", content))
    return "py3-none-" + re.sub(r"[-.]", "_", sysconfig.get_platform().replace("linux", f"manylinux_2_{minor}"))


def _record(files: "dict[str, bytes]") -> Iterable[str]:
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        yield f"{path},sha256={digest},{len(content)}\n"


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Optional[str] = None) -> str:
    """PEP 517. The same content produces the same bytes."""
    files = _files()
    name = f"zerod-{VERSION}-{_tag(files)}.whl"
    Path(wheel_directory).mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(Path(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100000 | _mode(path)) << 16
            wheel.writestr(entry, content)
    return name


def _mode(path: str) -> int:
    return 0o755 if path.endswith(LIBRARY) or path.startswith("zerod/bin/") else 0o644


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """PEP 517."""
    raise SystemExit("there is no source distribution of the Python package: the library's sources are not beside it")


def install(prefix: str) -> Path:
    """Replaces an earlier installation, and returns the package's folder."""
    version = "python%d.%d" % sys.version_info[:2]
    return _replace(Path(prefix, "lib", version, "site-packages") if prefix else Path(sysconfig.get_path("platlib")), _files())


def _replace(folder: Path, files: "dict[str, bytes]") -> Path:
    for old in [folder / "zerod", *folder.glob("zerod-*.dist-info")]:
        shutil.rmtree(old, ignore_errors=True)
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
        (folder / path).chmod(_mode(path))
    return folder / "zerod"


if __name__ == "__main__":
    if sys.argv[1:2] == ["wheel"] and len(sys.argv) == 3:
        print(Path(sys.argv[2], build_wheel(sys.argv[2])))
    elif sys.argv[1:2] == ["install"] and len(sys.argv) <= 3:
        print(install(sys.argv[2] if len(sys.argv) == 3 else ""))
    elif sys.argv[1:2] == ["modules"] and len(sys.argv) == 3:
        print(_replace(Path(sys.argv[2]), _files(library=False)))
    else:
        raise SystemExit(__doc__)
