"""Downloads the jars of Spark's Kafka connector, to compare with it.

The parent of its POM names a repository that may not respond, so its dependencies are listed here
instead of being resolved.
"""

import shutil
from pathlib import Path

from tests.peers import cache_folder, find_java, one_installer, run_installer

JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)


def find_connector() -> list[Path]:
    """The jars; raises MissingPeer."""
    find_java()
    folder = cache_folder() / "spark-connector"
    folder.mkdir(exist_ok=True)
    found = []
    with one_installer():
        for group, artifact, version in JARS:
            jar = folder / f"{artifact}-{version}.jar"
            if not jar.exists():
                _download(group, artifact, version, jar)
            found.append(jar)
    return found


def _download(group: str, artifact: str, version: str, jar: Path) -> None:
    remedy = "Spark's Kafka connector needs Maven (apt-get install maven) and Maven Central"
    get = ["mvn", "-q", "-B", "dependency:get", f"-Dartifact={group}:{artifact}:{version}"]
    run_installer([*get, "-Dtransitive=false"], folder=jar.parent, remedy=remedy)
    kept = Path.home() / ".m2/repository" / group.replace(".", "/") / artifact / version / jar.name
    part = jar.with_suffix(".part")
    shutil.copyfile(kept, part)
    part.rename(jar)
