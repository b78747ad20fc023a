"""Prometheus and promtool, from the PATH or from Debian's package, which is unpacked and not
installed."""

import shutil
from pathlib import Path

from tests.peers import MissingPeer, cache_folder, one_installer, run_installer

REMEDY = "install prometheus (apt-get install prometheus)"


def find_promtool() -> Path:
    return _find("promtool")


def find_prometheus() -> Path:
    return _find("prometheus")


def _find(program: str) -> Path:
    installed = shutil.which(program)
    if installed is not None:
        return Path(installed)
    folder = cache_folder() / "prometheus"
    with one_installer():
        if not folder.exists():
            _unpack(folder)
    return folder / "usr" / "bin" / program


def _unpack(folder: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise MissingPeer(f"Prometheus is missing; {REMEDY}")
    part = folder.with_name("prometheus.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    download = ["apt-get", "download", "-qq", "prometheus"]
    try:
        run_installer(download, folder=part, remedy=REMEDY)
    except MissingPeer:  # the package lists of a fresh container are empty
        run_installer(["apt-get", "update", "-qq"], folder=part, remedy=REMEDY)
        run_installer(download, folder=part, remedy=REMEDY)
    [package] = part.glob("prometheus_*.deb")
    run_installer(["dpkg-deb", "-x", str(package), str(part)], folder=part, remedy=REMEDY)
    package.unlink()
    part.rename(folder)
