"""Runs the transforms between sources and sink, on a batch or on a stream."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from riverrun.pipeline.declaration.model import PythonTransform, SqlTransform, Transform
from riverrun.pipeline.errors import CannotContinue
from riverrun.pipeline.run.analysis import InvalidTransform
from riverrun.pipeline.run.failures import is_missing_path, transient_errors

_STATEFUL = re.compile(
    r"^[\s:|+-]*~?(Aggregate|Deduplicate\w*|Distinct|Join|Window|Sort|GlobalLimit|LocalLimit|Offset"
    r"|Intersect|Except|\w*MapGroups\w*|TransformWithState\w*|\w*StatefulOperator\w*)\b",
    re.MULTILINE,
)


def run_transforms(
    spark: SparkSession,
    frames: Mapping[str, DataFrame],
    transforms: Sequence[Transform],
    output: str,
) -> DataFrame:
    """The DataFrame named ``output``. Registers each input and result as a temporary view.

    Raises InvalidTransform, and CannotContinue for an error in the user's code.
    """
    known = dict(frames)
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    for transform in transforms:
        made = apply_transform(spark, transform, known)
        known[transform.name] = made
        made.createOrReplaceTempView(transform.name)
    return known[output]


def apply_transform(
    spark: SparkSession, transform: Transform, known: Mapping[str, DataFrame]
) -> DataFrame:
    """The result of one transform. The views of its inputs exist."""
    match transform:
        case SqlTransform():
            try:
                return spark.sql(transform.sql)
            except AnalysisException as error:
                if is_missing_path(error):
                    raise
                raise InvalidTransform(transform, error) from None
        case PythonTransform():
            return _call(transform, [known[name] for name in transform.inputs])


def is_stateful(frame: DataFrame) -> bool:
    """Whether the plan combines rows of several batches.

    Run on a single batch, such a transform would silently compute another result.
    """
    plan = frame._jdf.queryExecution().analyzed().toString()
    return _STATEFUL.search(plan) is not None


def load_function(transform: PythonTransform) -> object:
    """Load the function from its file. Raises CannotContinue if it does not exist."""
    with _attributed(transform):
        function = getattr(_module(transform.module), transform.function, None)
    if not callable(function):
        text = f"{transform.module} has no function {transform.function}"
        raise CannotContinue(f"transforms.{transform.name}.python: {text}")
    return function


def _call(transform: PythonTransform, inputs: Sequence[DataFrame]) -> DataFrame:
    function = load_function(transform)
    assert callable(function)
    with _attributed(transform):
        made = function(*inputs)
    if not isinstance(made, DataFrame):
        text = f"{transform.function} returns {type(made).__name__}, not a DataFrame"
        raise CannotContinue(f"transforms.{transform.name}.python: {text}")
    return made


@contextlib.contextmanager
def _attributed(transform: PythonTransform) -> Iterator[None]:
    """Report errors of user code with their line. Transient errors (Spark, files, network) pass."""
    try:
        yield
    except Exception as error:
        # PySpark's errors about wrong arguments are errors of the caller too.
        is_wrong_call = isinstance(error, AttributeError | TypeError | ValueError)
        if isinstance(error, transient_errors()) and not is_wrong_call:
            raise
        where = _line_of(error, transform.module)
        text = f"{where}: {type(error).__name__}: {error}"
        raise CannotContinue(f"transforms.{transform.name}.python: {text}") from error


def _line_of(error: Exception, file: str) -> str:
    """The innermost line of this file in the traceback, or of any file."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file] or frames
    return f"{own[-1].filename}:{own[-1].lineno}"


def _module(name: str) -> ModuleType:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(Path(name).stem, name)
    assert spec is not None, "a .py file can be loaded"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
