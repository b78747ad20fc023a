"""`python tools/vendor_console.py`: fetch the console's third-party files from the npm registry.

Bare import names become relative paths, because the page has no import map (see vendor/README.md).
The manifest records every difference from the upstream files.
"""

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

VENDOR = Path(__file__).parent.parent / "src/riverrun/console/static/vendor"

VERSIONS = {
    "preact": "11.2.0",
    "@preact/signals-core": "1.14.5",
    "@preact/signals": "2.11.4",
    "htm": "3.1.1",
    "uplot": "1.6.32",
}
PREACT = ('from"preact"', 'from"./preact.js"')
HOOKS = ('from"preact/hooks"', 'from"./hooks.js"')
SIGNALS_CORE = ('from"@preact/signals-core"', 'from"./signals-core.js"')


class VendorFile(NamedTuple):
    name: str
    package: str
    path: str
    rewrites: tuple[tuple[str, str], ...] = ()
    append: str = ""


FILES = (
    VendorFile("preact.js", "preact", "dist/preact.mjs"),
    VendorFile("hooks.js", "preact", "hooks/dist/hooks.mjs", (PREACT,)),
    VendorFile("signals-core.js", "@preact/signals-core", "dist/signals-core.mjs"),
    VendorFile("signals.js", "@preact/signals", "dist/signals.mjs", (PREACT, HOOKS, SIGNALS_CORE)),
    VendorFile("htm.js", "htm", "dist/htm.mjs"),
    VendorFile("uplot.js", "uplot", "dist/uPlot.iife.min.js", append="export default uPlot;\n"),
    VendorFile("uplot.css", "uplot", "dist/uPlot.min.css"),
)


def fetch(package: str) -> dict[str, bytes]:
    """The files of a package by their path in it."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["npm", "pack", "--silent", f"{package}@{VERSIONS[package]}"]
        done = subprocess.run(arguments, cwd=folder, check=True, capture_output=True, text=True)
        archive = Path(folder, done.stdout.strip()).read_bytes()
    files = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        for member in packed.getmembers():
            content = packed.extractfile(member)
            if content is not None:
                files[member.name.removeprefix("package/")] = content.read()
    return files


def rewritten(file: VendorFile, upstream: bytes) -> bytes:
    content = upstream
    for old, new in file.rewrites:
        assert old.encode() in content, f"{file.name} does not contain {old}"
        assert new.encode() not in content, f"{file.name} already contains {new}"
        content = content.replace(old.encode(), new.encode())
    return content + file.append.encode()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main() -> None:
    packages = {package: fetch(package) for package in VERSIONS}
    files = []
    for file in FILES:
        upstream = packages[file.package][file.path]
        content = rewritten(file, upstream)
        (VENDOR / file.name).write_bytes(content)
        files.append(
            {
                "file": file.name,
                "package": file.package,
                "version": VERSIONS[file.package],
                "path": file.path,
                "sha256": sha256(content),
                "upstream_sha256": sha256(upstream),
                "rewrites": file.rewrites,
                "append": file.append,
            }
        )
    licences = []
    for package, found in packages.items():
        name = f"licences/{package.split('/')[-1]}.txt"
        (VENDOR / name).write_bytes(found["LICENSE"])
        licences.append({"file": name, "sha256": sha256(found["LICENSE"])})
    manifest = json.dumps({"files": files, "licences": licences}, indent=2)
    (VENDOR / "manifest.json").write_text(manifest + "\n")


if __name__ == "__main__":
    main()
