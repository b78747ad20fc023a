"""``save()`` without a mode appends: the hook that ``riverrun.pth`` installs."""

import subprocess
import sys
from pathlib import Path

import pyspark
import pyspark.sql
import pytest

import riverrun_append


class Writer:
    """As PySpark's: what was chosen last counts, and None chooses nothing."""

    def __init__(self) -> None:
        self.chosen = "error"

    def mode(self, saveMode: str | None) -> "Writer":
        self.chosen = saveMode or self.chosen
        return self

    def format(self, source: str) -> "Writer":
        return self


@pytest.fixture
def writer() -> Writer:
    class Patched(Writer):
        pass

    riverrun_append.append_by_default(Patched)
    return Patched()


def test_our_format_appends(writer: Writer) -> None:
    assert writer.format("Riverrun").chosen == "append"
    assert writer.mode(None).format("riverrun").mode(None).chosen == "append"


def test_other_formats_are_left_alone(writer: Writer) -> None:
    assert writer.format("parquet").chosen == "error"


@pytest.mark.parametrize("mode", ["overwrite", "error", "ignore"])
def test_what_the_user_chose_stays(writer: Writer, mode: str) -> None:
    assert writer.mode(mode).mode(None).format("riverrun").chosen == mode
    assert writer.format("riverrun").mode(mode).chosen == mode


def test_another_format_named_later_is_as_if_ours_was_not(writer: Writer) -> None:
    assert writer.format("riverrun").format("parquet").chosen == "error"
    assert writer.format("parquet").format("riverrun").chosen == "append"
    assert writer.format("riverrun").mode("ignore").format("parquet").chosen == "ignore"


def test_two_threads_may_import_at_once() -> None:
    finder = riverrun_append.WriterFinder()
    before = list(sys.meta_path)
    spec = finder.find_spec("pyspark.sql.readwriter", pyspark.sql.__path__)
    assert spec is not None
    assert isinstance(spec.loader, riverrun_append.WriterLoader)
    assert sys.meta_path == before, "another thread may go through it just now"


def test_an_interpreter_has_the_hook_from_its_start_and_does_not_load_spark_for_it() -> None:
    told = subprocess.check_output(
        [sys.executable, "-c", "import sys; print('riverrun_append' in sys.modules)\n"
         "print('pyspark' in sys.modules); import pyspark.sql\n"
         "print(pyspark.sql.DataFrameWriter.format.__module__)"],
        text=True,
    )  # fmt: skip
    assert told.split() == ["True", "False", "riverrun_append"]


ARCHIVE = Path(pyspark.__file__).parent / "python/lib/pyspark.zip"


def test_pyspark_in_an_archive_of_its_own_is_found_too(tmp_path: Path) -> None:
    archive = tmp_path / "pyspark.zip"
    archive.symlink_to(ARCHIVE)
    told = subprocess.check_output(
        [sys.executable, "-c", "import pyspark.sql, pyspark.sql.merge\n"
         "print(pyspark.sql.DataFrameWriter.format.__module__, pyspark.__file__)"],
        text=True, env={"PYTHONPATH": str(archive)},
    )  # fmt: skip
    where, file = told.split()
    assert where == "riverrun_append"
    assert file.startswith(str(archive))


def test_workers_import_pyspark_unpacked_and_all_else_as_spark_says() -> None:
    told = subprocess.check_output(
        [sys.executable, "-c", "import sys, pyspark\nprint(pyspark.__file__, *sys.path[1:])"],
        text=True, env={"PYTHONPATH": f"first.zip:{ARCHIVE}:second.zip"},
    )  # fmt: skip
    file, first, second, *others = told.split()
    assert file == pyspark.__file__
    assert (Path(first).name, Path(second).name) == ("first.zip", "second.zip")
    assert str(ARCHIVE) not in others


def test_an_archive_stays_where_its_package_is_not_on_the_path() -> None:
    path = ["/a/pyspark/python/lib/pyspark.zip", "/b/pyspark/python/lib/pyspark.zip", "/b"]
    riverrun_append.prefer_unpacked(path)
    assert path == ["/a/pyspark/python/lib/pyspark.zip", "/b"]
